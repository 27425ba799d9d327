"""How each architecture's config.json describes its layers; unknown architectures are an error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pytest_flashinfer_perf.api import errors
from pytest_flashinfer_perf.extensions.models import config_json, quantisation
from pytest_flashinfer_perf.extensions.models.config_json import ConfigError, Fields
from pytest_flashinfer_perf.extensions.models.description import (
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
NEEDED = (
    "hidden_size, num_hidden_layers, vocab_size, num_attention_heads, num_key_value_heads, head_dim and "
    "intermediate_size; with experts also their number, moe_intermediate_size and num_experts_per_tok"
)


def read(path: Path) -> Description:
    """Read a config.json or its folder. Its name is the file's own, or for a config.json that of its folder."""
    config, file = config_json.read(path), path.resolve()
    folder = file if file.is_dir() else file.parent
    named = folder.name if file.is_dir() or file.name == "config.json" else file.stem
    return describe(config, re.sub(r"[^a-zA-Z0-9.]+", "-", named).strip("-") or "model")


def describe(config: Fields, name: str) -> Description:
    architecture = _architecture(config)
    inner, quantised = config.language(), quantisation.read(config.language())
    count = inner.number("num_hidden_layers", most=MOST_LAYERS)
    layers: Counter[Layer] = Counter()
    for index in range(count):
        layers[Layer(*ARCHITECTURES[architecture](inner, index), quantised.of(index))] += 1
    return Description(
        name=name,
        architecture=architecture,
        hidden=inner.number("hidden_size"),
        vocabulary=inner.number("vocab_size"),
        tied=inner.switch("tie_word_embeddings"),
        layers=tuple(layers.items()),
        dtype=quantisation.dtype(inner),
    )


def _architecture(config: Fields) -> str:
    listed = config.words("architectures")
    if not listed:
        raise config.fault("architectures", f"is missing: {', '.join(ARCHITECTURES)} are known")
    if listed[0] not in ARCHITECTURES:
        sentence = errors.unknown(listed[0], ARCHITECTURES)
        raise ConfigError(f"{config.source}: architectures: {sentence}; a new one has to say how it spells {NEEDED}")
    return listed[0]


def _heads(config: Fields, **more: object) -> Grouped:
    heads = config.number("num_attention_heads")
    kv_heads = config.number("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.fault("num_attention_heads", f"{heads} is no multiple of num_key_value_heads {kv_heads}")
    size = config.number("head_dim", "attention_head_dim", default=max(1, config.number("hidden_size") // heads))
    biased = config.switch("attention_bias")
    return Grouped(heads, kv_heads, size, biased, **more)  # type: ignore[arg-type] # of its fields


Parts = tuple[Mixer, Feed]  # of a layer: what it mixes tokens with, and what follows


def _llama(config: Fields, _index: int) -> Parts:
    return _heads(config), Dense(config.number("intermediate_size"))


def _qwen3(config: Fields, _index: int) -> Parts:
    size = config.number("head_dim")
    return _heads(config, normed=2 * size), Dense(config.number("intermediate_size"))


def _qwen3_moe(config: Fields, index: int) -> Parts:
    attention, dense = _qwen3(config, index)
    frequent = (index + 1) % config.number("decoder_sparse_step", default=1) == 0
    if not frequent or index in config.numbers("mlp_only_layers"):
        return attention, dense
    return attention, _experts(config, "num_experts", "moe_intermediate_size", Routing("renormalize"))


def _experts(config: Fields, count: str, width: str, routing: Routing, **more: object) -> Experts:
    there, chosen = config.number(count), config.number("num_experts_per_tok", "top_k_experts")
    if chosen > there:
        raise config.fault("num_experts_per_tok", f"{chosen} is more than {count} {there}")
    return Experts(there, chosen, config.number(width), routing, **more)  # type: ignore[arg-type] # of its fields


def _mixtral(config: Fields, _index: int) -> Parts:
    experts = _experts(config, "num_local_experts", "intermediate_size", Routing("renormalize"))
    return _heads(config, window=config.optional("sliding_window")), experts


def _minimax(config: Fields, _index: int) -> Parts:
    heads = _heads(config)
    normed = (heads.heads + heads.kv_heads) * heads.head_dim * config.switch("use_qk_norm")
    routing = Routing("deepseek_v3", scaling=1.0, biased=config.switch("use_routing_bias"))
    return _heads(config, normed=normed), _experts(config, "num_local_experts", "intermediate_size", routing)


def _gpt_oss(config: Fields, index: int) -> Parts:
    window = config.optional("sliding_window") if _kind(config, index) == "sliding_attention" else None
    experts = _experts(config, "num_local_experts", "intermediate_size", Routing("renormalize"), biases=True)
    return _heads(config, window=window, sinks=True), experts


def _kind(config: Fields, index: int) -> str:
    kinds = config.words("layer_types")
    if index >= len(kinds):
        raise config.fault("layer_types", f"lists {len(kinds)} layers of {config.number('num_hidden_layers')}")
    return kinds[index]


def _llama4(config: Fields, index: int) -> Parts:
    """Layers without RoPE see all tokens, the others those of their chunk."""
    whole = (index + 1) % config.number("no_rope_layer_interval", default=4) == 0
    window = None if whole else config.optional("attention_chunk_size")
    attention = _heads(config, window=window, rotated=not whole)
    every = config.number("interleave_moe_layer_step")
    if (index + 1) % every:
        return attention, Dense(config.number("intermediate_size_mlp"))
    shared = Dense(config.number("intermediate_size"))
    return attention, _experts(config, "num_local_experts", "intermediate_size", Routing("llama4"), shared=shared)


def _deepseek(config: Fields, index: int) -> Parts:
    frequent = config.number("moe_layer_freq", default=1)
    sizes = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent = Latent(config.number("num_attention_heads"), *(config.number(name) for name in sizes))
    if index < config.number("first_k_dense_replace", default=0, least=0) or index % frequent:
        return latent, Dense(config.number("intermediate_size"))
    groups, chosen = config.number("n_group", default=1), config.number("topk_group", default=1)
    grouped = {"groups": groups, "groups_chosen": chosen} if groups > 1 else {}
    scaling = config.factor("routed_scaling_factor")
    routing = Routing("deepseek_v3", scaling=scaling, biased=True, **grouped)
    width = "moe_intermediate_size"
    shared = config.number("n_shared_experts", default=0, least=0) * config.number(width)
    return latent, _experts(config, "n_routed_experts", width, routing, shared=Dense(shared) if shared else None)


def _qwen3_5(config: Fields, index: int) -> Parts:
    return _qwen3_5_mixer(config, index), Dense(config.number("intermediate_size"))


def _qwen3_5_moe(config: Fields, index: int) -> Parts:
    shared = Dense(config.number("shared_expert_intermediate_size"))
    routing = Routing("renormalize")
    experts = _experts(config, "num_experts", "moe_intermediate_size", routing, shared=shared, shared_gate=True)
    return _qwen3_5_mixer(config, index), experts


def _qwen3_5_mixer(config: Fields, index: int) -> Mixer:
    if _kind(config, index) != "linear_attention":
        return _heads(config, gated=config.switch("attn_output_gate"), normed=2 * config.number("head_dim"))
    # A gated delta net has queries, keys, values, an output gate, and two numbers for each value head.
    heads, size = config.number("linear_num_value_heads"), config.number("linear_value_head_dim")
    keys = config.number("linear_num_key_heads") * config.number("linear_key_head_dim")
    values = heads * size
    convolution = (2 * keys + values) * config.number("linear_conv_kernel_dim")
    state, other = values * config.number("linear_key_head_dim"), convolution + 2 * heads + size
    return Recurrent("gated delta net", 2 * keys + 2 * values + 2 * heads, values, other, state)


def _nemotron(config: Fields, index: int) -> Parts:
    """Each layer is a mixer or a feed-forward layer, by the letter that the pattern has for it."""
    pattern = config.word("hybrid_override_pattern")
    letter = pattern[index : index + 1]
    if letter not in ("M", "*", "-", "E") or not letter:
        raise config.fault("hybrid_override_pattern", f"has {letter!r} for layer {index}: M, *, - and E are known")
    if letter == "M":
        return _mamba(config), None
    if letter == "*":
        return _heads(config, rotated=False), None
    return None, _nemotron_experts(config) if letter == "E" else Dense(config.number("intermediate_size"), False)


def _mamba(config: Fields) -> Recurrent:
    """Mamba 2: x, its gate, B, C and the time steps from one projection."""
    heads, size = config.number("mamba_num_heads"), config.number("mamba_head_dim")
    inner, states = heads * size, 2 * config.number("n_groups") * config.number("ssm_state_size")
    convolution = (inner + states) * (config.number("conv_kernel") + config.switch("use_conv_bias"))
    state = inner * config.number("ssm_state_size")
    return Recurrent("Mamba 2", 2 * inner + states + heads, inner, convolution + 3 * heads + inner, state)


def _nemotron_experts(config: Fields) -> Experts:
    if "moe_latent_size" in config:
        raise config.fault("moe_latent_size", "is of experts behind a projection, which is not described here")
    routing = Routing("deepseek_v3", scaling=config.factor("routed_scaling_factor"), biased=True)
    shared = Dense(config.number("moe_shared_expert_intermediate_size"), False)
    more = {"shared": shared, "gated": False, "activation": "Relu2"}
    return _experts(config, "n_routed_experts", "moe_intermediate_size", routing, **more)


ARCHITECTURES: dict[str, Callable[[Fields, int], Parts]] = {
    "LlamaForCausalLM": _llama,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3VLForConditionalGeneration": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Qwen3VLMoeForConditionalGeneration": _qwen3_moe,
    "Qwen3_5ForConditionalGeneration": _qwen3_5,
    "Qwen3_5MoeForConditionalGeneration": _qwen3_5_moe,
    "MixtralForCausalLM": _mixtral,
    "MiniMaxM2ForCausalLM": _minimax,
    "GptOssForCausalLM": _gpt_oss,
    "Llama4ForConditionalGeneration": _llama4,
    "DeepseekV3ForCausalLM": _deepseek,
    "NemotronHForCausalLM": _nemotron,
}
