"""Model presets: from a model's name and its distribution over GPUs to the shapes of its layers on one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.models import description, shipped
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
    """Multi-head latent attention."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class Widths:
    """The widths that a model's projections connect; `intermediate` is that of its dense layers, if it has any."""

    attention: Attention | Latent
    hidden: int
    intermediate: int | None
    vocabulary: int

    def shared(self, over: Spread) -> Iterator[tuple[int, str, int]]:
        return self.attention.shared(over)


@dataclass(frozen=True)
class Experts:
    """The experts of a layer, and how they are chosen; in some models in groups, or with a bias."""

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
    """The width of queries, keys and values together, and of the output; each GPU has the whole latent part."""
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
    """The parameters for a kernel that receives the chosen experts."""
    sizes = {"hidden_size": layer.hidden, "intermediate_size": layer.intermediate, "num_experts": layer.count}
    return {**sizes, "top_k": layer.top_k, "tp_size": over.tp, "tp_rank": 0, "ep_size": over.ep, "ep_rank": 0}


# Models whose config.json is part of the package, in the order of tiers; of hybrid ones only the experts.
_GROUPED_MODELS = (
    "llama-3.1-8b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "llama-4-scout",
    "llama-4-maverick",
    "mixtral-8x7b",
    "mixtral-8x22b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-8b",
    "qwen3-32b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "gpt-oss-20b",
    "gpt-oss-120b",
)
_LATENT_MODELS = ("deepseek-v3", "deepseek-r1", "kimi-k2")
_HYBRID_MODELS = ("qwen3.5-35b-a3b",)

# Of models without a config.json here: attention, then hidden size, feed-forward size and vocabulary.
_WRITTEN = {
    "qwen3-4b": (Attention(32, 8, 128), 2560, 9728, 151936),
    "qwen3-14b": (Attention(40, 8, 128), 5120, 17408, 151936),
    "gemma-3-12b": (Attention(16, 8, 256), 3840, 15360, 262208),
}

UNGROUPED = {"n_group": None, "topk_group": None, "use_routing_bias": False}


def _attention_of(name: str) -> Attention | Latent:
    """That of the first layer: in each of these models all layers have the same heads."""
    mixer = next(shipped.model(name).mixers())
    if isinstance(mixer, description.Latent):
        return Latent(mixer.heads, mixer.q_rank, mixer.kv_rank, mixer.nope_dim, mixer.rope_dim, mixer.v_dim)
    assert isinstance(mixer, description.Grouped)
    return Attention(mixer.heads, mixer.kv_heads, mixer.head_dim)


def _widths_of(name: str) -> Widths:
    model = shipped.model(name)
    dense = next((feed.width for feed in model.feeds() if isinstance(feed, description.Dense)), None)
    return Widths(_attention_of(name), model.hidden, dense, model.vocabulary)


def _experts_of(name: str) -> Experts | None:
    model = shipped.model(name)
    found = next((feed for feed in model.feeds() if isinstance(feed, description.Experts)), None)
    if found is None:
        return None
    return Experts(model.hidden, found.width, found.count, found.chosen, _routing(found.routing))


def _routing(chosen: description.Routing) -> dict[str, Any]:
    """What differs from the defaults of the routines."""
    known = {
        "routing_method": chosen.method,
        "use_routing_bias": chosen.biased or None,
        "n_group": chosen.groups,
        "topk_group": chosen.groups_chosen,
        "routed_scaling_factor": chosen.scaling,
    }
    return {name: value for name, value in known.items() if value is not None}


_GROUPED: dict[str, Attention] = {
    **{name: layer for name in _GROUPED_MODELS if isinstance(layer := _attention_of(name), Attention)},
    **{name: written[0] for name, written in _WRITTEN.items()},
}
_LATENT: dict[str, Latent] = {
    name: layer for name in _LATENT_MODELS if isinstance(layer := _attention_of(name), Latent)
}
_ALL: dict[str, Attention | Latent] = {**_GROUPED, **_LATENT}
_EXPERTS = {
    name: found
    for name in (*_LATENT_MODELS, *_GROUPED_MODELS, *_HYBRID_MODELS)
    if (found := _experts_of(name)) is not None
}
_WIDTHS = {name: Widths(*_WRITTEN[name]) if name in _WRITTEN else _widths_of(name) for name in _ALL}

TOKENS = (1, 8, 64, 512, 4096, 8192)
_OF_EXPERTS = (*(Spread(ep=ep) for ep in (1, 8, 32)), *(Spread(tp=tp) for tp in (2, 8)))
experts = Presets(_EXPERTS, _experts, _OF_EXPERTS)
chosen_experts = Presets(_EXPERTS, _chosen_experts, _OF_EXPERTS)

attention = Presets(_GROUPED, _grouped)
latent = Presets(_LATENT, _absorbed)
expanded: Presets[Any] = Presets(_ALL, _expanded)
projections = Presets(_WIDTHS, _projections)
