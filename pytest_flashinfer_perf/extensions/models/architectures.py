"""How each architecture's config.json describes its layers.

`ARCHITECTURES` is the table: a function that says of one layer what it mixes tokens with and what follows, and what a
config.json of it leaves out. An architecture that is not in it is an error that says what has to be added.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from pytest_flashinfer_perf.extensions.models import config_json, quantisation
from pytest_flashinfer_perf.extensions.models.config_json import ConfigError, Fields
from pytest_flashinfer_perf.extensions.models.description import (
    GELU,
    Dense,
    Description,
    Experts,
    Feed,
    Grouped,
    Layer,
    Mixer,
    Recurrent,
)
from pytest_flashinfer_perf.routines.published_models import Latent, Routing

MOST_LAYERS = 1024
RENORMALIZED = Routing("renormalize")


def read(path: Path) -> Description:
    """Read a config.json or its folder. Its name is the file's own, or for a config.json that of its folder."""
    config, file = config_json.read(path), path.resolve()
    folder = file if file.is_dir() else file.parent
    named = folder.name if file.is_dir() or file.name == "config.json" else file.stem
    return describe(config, re.sub(r"[^a-zA-Z0-9.]+", "-", named).strip("-") or "model")


def describe(config: Fields, name: str) -> Description:
    architecture = _architecture(config)
    inner = config.language(architecture.defaults)
    quantised = quantisation.read(inner)
    layers: Counter[Layer] = Counter()
    for index in range(inner.number("num_hidden_layers", most=MOST_LAYERS)):
        layers[Layer(*architecture.parts(inner, index), quantised.of(index))] += 1
    return Description(
        name=name,
        hidden=inner.number("hidden_size"),
        vocabulary=inner.number("vocab_size"),
        tied=inner.switch("tie_word_embeddings"),
        layers=tuple(layers.items()),
        gemma=architecture.parts is _gemma3,
    )


def _architecture(config: Fields) -> Architecture:
    listed = config.words("architectures")
    if not listed:
        raise config.fault("architectures", f"is missing: {', '.join(ARCHITECTURES)} are known")
    if listed[0] not in ARCHITECTURES:
        raise ConfigError(
            f"{config.source}: architectures: {listed[0]} is not described. If its layers are those of one that is, "
            f"write that one's name there: {', '.join(ARCHITECTURES)}. If not, it needs a line in ARCHITECTURES of "
            f"{__name__} with a function that says of each layer how its config.json spells its heads and its "
            "feed-forward part or experts"
        )
    return ARCHITECTURES[listed[0]]


# What a layer mixes tokens with.


def _heads(config: Fields, **more: Any) -> Grouped:
    heads = config.number("num_attention_heads")
    kv_heads = config.number("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.fault("num_attention_heads", f"{heads} is no multiple of num_key_value_heads {kv_heads}")
    size = config.number("head_dim", "attention_head_dim", default=max(1, config.number("hidden_size") // heads))
    biased = config.switch("attention_bias")
    return Grouped(heads, kv_heads, size, **{"biased": biased, "out_biased": biased, **more})


def _normed(config: Fields, **more: Any) -> Grouped:
    """Attention with a norm of each query head and each key head."""
    heads = _heads(config, **more)
    return replace(heads, normed=2 * heads.head_dim)


def _is_whole(config: Fields, index: int, every: int) -> bool:
    """Whether the layer attends to all tokens, by its name in a list, or as each of so many does."""
    kinds = config.words("layer_types")
    if not kinds:
        return (index + 1) % config.number("sliding_window_pattern", "full_attention_interval", default=every) == 0
    if index >= len(kinds):
        raise config.fault("layer_types", f"lists {len(kinds)} layers of {config.number('num_hidden_layers')}")
    return kinds[index] == "full_attention"


def _window(config: Fields, index: int, every: int) -> int | None:
    return None if _is_whole(config, index, every) else config.optional("sliding_window")


def _latent(config: Fields) -> Latent:
    """DeepSeek-V2-Lite has no latents of queries."""
    ranks = config.number("q_lora_rank", default=0), config.number("kv_lora_rank")
    sizes = (config.number(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    return Latent(config.number("num_attention_heads"), *ranks, *sizes)


def _delta_net(config: Fields) -> Recurrent:
    """Queries, keys, values, an output gate, and two numbers for each value head."""
    heads, size = config.number("linear_num_value_heads"), config.number("linear_value_head_dim")
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    values = heads * size
    convolution = (2 * keys + values) * config.number("linear_conv_kernel_dim")
    return Recurrent(2 * keys + 2 * values + 2 * heads, values, convolution + 2 * heads + size)


# What follows.


def _dense(config: Fields, name: str = "intermediate_size", **more: Any) -> Dense:
    return Dense(config.number(name), **more)


def _experts(config: Fields, count: str, width: str, routing: Routing = RENORMALIZED, **more: Any) -> Experts:
    there, chosen = config.number(count), config.number("num_experts_per_tok", "top_k_experts")
    if chosen > there:
        raise config.fault("num_experts_per_tok", f"{chosen} is more than {count} {there}")
    return Experts(there, chosen, config.number(width), routing, **more)


def _qwen_feed(config: Fields, index: int) -> Feed:
    """Experts in each layer, or in some of them; some have one that every token takes, behind a gate."""
    if (index + 1) % config.number("decoder_sparse_step", default=1) or index in config.numbers("mlp_only_layers"):
        return _dense(config)
    one = "shared_expert_intermediate_size"
    shared = _dense(config, one) if one in config else None
    return _experts(config, "num_experts", "moe_intermediate_size", shared=shared, shared_gate=shared is not None)


def _deepseek_feed(config: Fields, index: int, *, biased: bool = True) -> Feed:
    frequent = config.number("moe_layer_freq", default=1)
    if index < config.number("first_k_dense_replace", default=0, least=0) or index % frequent:
        return _dense(config)
    groups, chosen = config.number("n_group", default=1), config.number("topk_group", default=1)
    grouped = {"groups": groups, "groups_chosen": chosen} if groups > 1 else {}
    scaling = config.factor("routed_scaling_factor")
    routing = Routing("deepseek_v3", scaling=scaling, biased=True, **grouped) if biased else RENORMALIZED
    shared = config.number("n_shared_experts", default=0, least=0) * config.number("moe_intermediate_size")
    of_all = Dense(shared) if shared else None
    return _experts(config, "n_routed_experts", "moe_intermediate_size", routing, shared=of_all)


# The layers of each architecture.

Parts = tuple[Mixer, Feed]


def _llama(config: Fields, _index: int) -> Parts:
    """Llama, and models with a window in each layer, or with biases of queries, keys and values alone."""
    return _heads(config, window=config.optional("sliding_window")), _dense(config)


def _qwen2(config: Fields, _index: int) -> Parts:
    return _heads(config, biased=True, out_biased=False), _dense(config)


def _qwen2_moe(config: Fields, index: int) -> Parts:
    return _heads(config, biased=True, out_biased=False), _qwen_feed(config, index)


def _qwen3(config: Fields, _index: int) -> Parts:
    return _normed(config), _dense(config)


def _qwen3_moe(config: Fields, index: int) -> Parts:
    return _normed(config), _qwen_feed(config, index)


def _qwen3_5(config: Fields, index: int) -> Parts:
    return _qwen3_5_mixer(config, index), _dense(config)


def _qwen3_5_moe(config: Fields, index: int) -> Parts:
    return _qwen3_5_mixer(config, index), _qwen_feed(config, index)


def _qwen3_5_mixer(config: Fields, index: int) -> Mixer:
    is_whole = _is_whole(config, index, every=4)
    return _normed(config, gated=config.switch("attn_output_gate")) if is_whole else _delta_net(config)


def _gemma3(config: Fields, index: int) -> Parts:
    return _normed(config, window=_window(config, index, every=6)), _dense(config, activation=GELU)


def _mixtral(config: Fields, _index: int) -> Parts:
    experts = _experts(config, "num_local_experts", "intermediate_size")
    return _heads(config, window=config.optional("sliding_window")), experts


def _minimax(config: Fields, _index: int) -> Parts:
    """MiniMax, whose norms are of all queries and of all keys."""
    heads = _heads(config)
    normed = (heads.heads + heads.kv_heads) * heads.head_dim * config.switch("use_qk_norm")
    routing = Routing("deepseek_v3", scaling=1.0, biased=config.switch("use_routing_bias"))
    return replace(heads, normed=normed), _experts(config, "num_local_experts", "intermediate_size", routing)


def _gpt_oss(config: Fields, index: int) -> Parts:
    experts = _experts(config, "num_local_experts", "intermediate_size", biases=True)
    return _heads(config, window=_window(config, index, every=2), sinks=True), experts


def _llama4(config: Fields, index: int) -> Parts:
    """Layers without RoPE see all tokens, the others those of their chunk."""
    whole = (index + 1) % config.number("no_rope_layer_interval", default=4) == 0
    window = None if whole else config.optional("attention_chunk_size")
    attention = _heads(config, window=window, rotated=not whole)
    if (index + 1) % config.number("interleave_moe_layer_step"):
        return attention, _dense(config, "intermediate_size_mlp")
    shared = _dense(config)
    return attention, _experts(config, "num_local_experts", "intermediate_size", Routing("llama4"), shared=shared)


def _deepseek_v2(config: Fields, index: int) -> Parts:
    return _latent(config), _deepseek_feed(config, index, biased=False)


def _deepseek_v3(config: Fields, index: int) -> Parts:
    return _latent(config), _deepseek_feed(config, index)


def _glm4_moe(config: Fields, index: int) -> Parts:
    heads = _normed if config.switch("use_qk_norm") else _heads
    return heads(config, out_biased=False), _deepseek_feed(config, index)


class Architecture(NamedTuple):
    """The parts of a layer, and the fields that a config.json may leave out, as transformers has them then."""

    parts: Callable[[Fields, int], Parts]
    defaults: Mapping[str, Any] = {}


GEMMA_3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "tie_word_embeddings": True,
}
LLAMA = Architecture(_llama)
QWEN_2 = Architecture(_qwen2)
ARCHITECTURES: Mapping[str, Architecture] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "Mistral3ForConditionalGeneration": LLAMA,
    "MinistralForCausalLM": LLAMA,
    "Phi3ForCausalLM": LLAMA,
    "GraniteForCausalLM": LLAMA,
    "Qwen2ForCausalLM": QWEN_2,
    "Qwen2_5_VLForConditionalGeneration": QWEN_2,
    "Qwen2MoeForCausalLM": Architecture(_qwen2_moe),
    "Qwen3ForCausalLM": Architecture(_qwen3),
    "Qwen3VLForConditionalGeneration": Architecture(_qwen3),
    "Qwen3MoeForCausalLM": Architecture(_qwen3_moe),
    "Qwen3VLMoeForConditionalGeneration": Architecture(_qwen3_moe),
    "Qwen3NextForCausalLM": Architecture(_qwen3_5_moe, {"attn_output_gate": True}),
    "Qwen3_5ForConditionalGeneration": Architecture(_qwen3_5),
    "Qwen3_5MoeForConditionalGeneration": Architecture(_qwen3_5_moe),
    "Gemma3ForCausalLM": Architecture(_gemma3, GEMMA_3),
    "Gemma3ForConditionalGeneration": Architecture(_gemma3, GEMMA_3),
    "MixtralForCausalLM": Architecture(_mixtral),
    "MiniMaxM2ForCausalLM": Architecture(_minimax),
    "GptOssForCausalLM": Architecture(_gpt_oss),
    "Llama4ForConditionalGeneration": Architecture(_llama4),
    "DeepseekV2ForCausalLM": Architecture(_deepseek_v2),
    "DeepseekV3ForCausalLM": Architecture(_deepseek_v3),
    "KimiK25ForConditionalGeneration": Architecture(_deepseek_v3),
    "Glm4MoeForCausalLM": Architecture(_glm4_moe),
}
