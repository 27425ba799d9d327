"""Model presets: a model's name and how it is spread over GPUs give the shapes of its layers on one of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.spec.presets import Presets, Spread


@dataclass(frozen=True)
class _Heads:
    num_qo_heads: int

    def shared(self, over: Spread) -> Iterator[tuple[int, str, int]]:
        yield self.num_qo_heads, "query heads", over.tp


@dataclass(frozen=True)
class Attention(_Heads):
    """Grouped-query attention as the model's configuration states it."""

    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class Latent(_Heads):
    """Multi-head latent attention: DeepSeek's sizes, which its descendants kept."""

    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128


@dataclass(frozen=True)
class Widths:
    """What a model's projections lead from and to; `intermediate` is that of its dense layers, if it has any."""

    attention: Attention | Latent
    hidden: int
    intermediate: int | None
    vocabulary: int

    def shared(self, over: Spread) -> Iterator[tuple[int, str, int]]:
        return self.attention.shared(over)


@dataclass(frozen=True)
class Experts:
    """Those of each layer that has any, and how they are chosen; in few models in groups, or with a bias."""

    hidden: int
    intermediate: int
    count: int
    top_k: int
    routing: Mapping[str, Any]

    def shared(self, over: Spread) -> Iterator[tuple[int, str, int]]:
        yield self.count, "experts", over.ep
        yield self.intermediate, "columns of an expert", over.tp


def _grouped(layer: Attention, over: Spread) -> dict[str, Any]:
    """Key and value heads are replicated where there are fewer than GPUs."""
    return {
        "num_qo_heads": layer.num_qo_heads // over.tp,
        "num_kv_heads": max(1, layer.num_kv_heads // over.tp),
        "head_dim_qk": layer.head_dim,
        "head_dim_vo": layer.head_dim,
    }


def _absorbed(layer: Latent, over: Spread) -> dict[str, Any]:
    """Decoding: the queries meet the latent cache itself."""
    return {
        "num_qo_heads": layer.num_qo_heads // over.tp,
        "head_dim_ckv": layer.kv_lora_rank,
        "head_dim_kpe": layer.qk_rope_head_dim,
    }


def _expanded(layer: Attention | Latent, over: Spread) -> dict[str, Any]:
    """Prefilling: a latent layer's keys and values are expanded, a head for each query head."""
    if isinstance(layer, Attention):
        return _grouped(layer, over)
    return {
        "num_qo_heads": layer.num_qo_heads // over.tp,
        "num_kv_heads": layer.num_qo_heads // over.tp,
        "head_dim_qk": layer.qk_nope_head_dim + layer.qk_rope_head_dim,
        "head_dim_vo": layer.v_head_dim,
    }


def _projections(layer: Widths, over: Spread) -> dict[str, Any]:
    """Each one's n and k: first and last are split by columns, the inner ones by rows."""
    qkv, heads = _attended(layer.attention, over)
    feed_forward = {} if layer.intermediate is None else _feed_forward(layer.hidden, layer.intermediate // over.tp)
    return {
        "qkv": {"n": qkv, "k": layer.hidden},
        "o": {"n": layer.hidden, "k": heads},
        **feed_forward,
        "lm-head": {"n": layer.vocabulary // over.tp, "k": layer.hidden},
    }


def _attended(attention: Attention | Latent, over: Spread) -> tuple[int, int]:
    """How wide the queries, keys and values are together, and the output; each GPU has all of what is latent."""
    if isinstance(attention, Latent):
        latent = attention.q_lora_rank + attention.kv_lora_rank + attention.qk_rope_head_dim
        return latent, attention.num_qo_heads // over.tp * attention.v_head_dim
    grouped = _grouped(attention, over)
    heads, keys = (grouped[name] * attention.head_dim for name in ("num_qo_heads", "num_kv_heads"))
    return heads + 2 * keys, heads


def _feed_forward(hidden: int, intermediate: int) -> dict[str, Any]:
    return {"gate-up": {"n": 2 * intermediate, "k": hidden}, "down": {"n": hidden, "k": intermediate}}


def _experts(layer: Experts, over: Spread) -> dict[str, Any]:
    """Each expert's part on this GPU, and the first of those that are here."""
    return {
        "hidden_size": layer.hidden,
        "intermediate_size": layer.intermediate // over.tp,
        "num_experts": layer.count,
        "local_num_experts": layer.count // over.ep,
        "local_expert_offset": 0,
        "top_k": layer.top_k,
        **UNGROUPED,
        **layer.routing,
    }


def _chosen_experts(layer: Experts, over: Spread) -> dict[str, Any]:
    """Of a kernel that is told which are chosen."""
    sizes = {"hidden_size": layer.hidden, "intermediate_size": layer.intermediate, "num_experts": layer.count}
    return {**sizes, "top_k": layer.top_k, "tp_size": over.tp, "tp_rank": 0, "ep_size": over.ep, "ep_rank": 0}


_ATTENTION = {
    "llama-3.1-8b": Attention(32, 8, 128),
    "llama-3.1-70b": Attention(64, 8, 128),
    "llama-3.1-405b": Attention(128, 8, 128),
    "llama-4-scout": Attention(40, 8, 128),
    "llama-4-maverick": Attention(40, 8, 128),
    "mixtral-8x7b": Attention(32, 8, 128),
    "mixtral-8x22b": Attention(48, 8, 128),
    "qwen3-0.6b": Attention(16, 8, 128),
    "qwen3-1.7b": Attention(16, 8, 128),
    "qwen3-4b": Attention(32, 8, 128),
    "qwen3-8b": Attention(32, 8, 128),
    "qwen3-14b": Attention(40, 8, 128),
    "qwen3-32b": Attention(64, 8, 128),
    "qwen3-30b-a3b": Attention(32, 4, 128),
    "qwen3-235b-a22b": Attention(64, 4, 128),
    "gpt-oss-20b": Attention(64, 8, 64),
    "gpt-oss-120b": Attention(64, 8, 64),
    "gemma-3-12b": Attention(16, 8, 256),
}
_LATENT = {
    "deepseek-v3": Latent(128),
    "deepseek-r1": Latent(128),
    "kimi-k2": Latent(64),
}

UNGROUPED = {"n_group": None, "topk_group": None, "use_routing_bias": False}
_SOFTMAX = {"routing_method": "renormalize"}
_SIGMOID = {"routing_method": "llama4"}
_DEEPSEEK = {"routing_method": "deepseek_v3", "use_routing_bias": True}
_IN_GROUPS = {**_DEEPSEEK, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5}

_EXPERTS = {
    "deepseek-v3": Experts(7168, 2048, 256, 8, _IN_GROUPS),
    "deepseek-r1": Experts(7168, 2048, 256, 8, _IN_GROUPS),
    "kimi-k2": Experts(7168, 2048, 384, 8, {**_DEEPSEEK, "routed_scaling_factor": 2.827}),
    "qwen3-30b-a3b": Experts(2048, 768, 128, 8, _SOFTMAX),
    "qwen3-235b-a22b": Experts(4096, 1536, 128, 8, _SOFTMAX),
    "qwen3.5-35b-a3b": Experts(2048, 512, 256, 8, _SOFTMAX),
    "gpt-oss-20b": Experts(2880, 2880, 32, 4, _SOFTMAX),
    "gpt-oss-120b": Experts(2880, 2880, 128, 4, _SOFTMAX),
    "llama-4-scout": Experts(5120, 8192, 16, 1, _SIGMOID),
    "llama-4-maverick": Experts(5120, 8192, 128, 1, _SIGMOID),
    "mixtral-8x7b": Experts(4096, 14336, 8, 2, _SOFTMAX),
    "mixtral-8x22b": Experts(6144, 16384, 8, 2, _SOFTMAX),
}

# Hidden size, that of dense feed-forward layers, vocabulary; where all of them are experts there is no second.
_WIDTHS = {
    "llama-3.1-8b": (4096, 14336, 128256),
    "llama-3.1-70b": (8192, 28672, 128256),
    "llama-3.1-405b": (16384, 53248, 128256),
    "llama-4-scout": (5120, None, 202048),
    "llama-4-maverick": (5120, 16384, 202048),
    "mixtral-8x7b": (4096, None, 32000),
    "mixtral-8x22b": (6144, None, 32000),
    "qwen3-0.6b": (1024, 3072, 151936),
    "qwen3-1.7b": (2048, 6144, 151936),
    "qwen3-4b": (2560, 9728, 151936),
    "qwen3-8b": (4096, 12288, 151936),
    "qwen3-14b": (5120, 17408, 151936),
    "qwen3-32b": (5120, 25600, 151936),
    "qwen3-30b-a3b": (2048, None, 151936),
    "qwen3-235b-a22b": (4096, None, 151936),
    "gpt-oss-20b": (2880, None, 201088),
    "gpt-oss-120b": (2880, None, 201088),
    "gemma-3-12b": (3840, 15360, 262208),
    "deepseek-v3": (7168, 18432, 129280),
    "deepseek-r1": (7168, 18432, 129280),
    "kimi-k2": (7168, 18432, 163840),
}

TOKENS = (1, 8, 64, 512, 4096, 8192)
_OF_EXPERTS = (*(Spread(ep=ep) for ep in (1, 8, 32)), *(Spread(tp=tp) for tp in (2, 8)))
experts = Presets(_EXPERTS, _experts, _OF_EXPERTS)
chosen_experts = Presets(_EXPERTS, _chosen_experts, _OF_EXPERTS)

attention = Presets(_ATTENTION, _grouped)
latent = Presets(_LATENT, _absorbed)
_ALL: dict[str, Attention | Latent] = {**_ATTENTION, **_LATENT}
expanded: Presets[Any] = Presets(_ALL, _expanded)
projections = Presets({name: Widths(layer, *_WIDTHS[name]) for name, layer in _ALL.items()}, _projections)
