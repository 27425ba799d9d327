"""The layers of known models as parameters of routines on one GPU: what `--perf-model` and the tiers of shapes run.

A model is described by its config.json (`shipped.py`); three that have none here are described below. Each set of
presets names the models that have such a layer, and is what a routine declares its sweep with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from pytest_flashinfer_perf.extensions.models import shipped
from pytest_flashinfer_perf.extensions.models.description import Dense, Description, Experts, Grouped, Latent, Layer
from pytest_flashinfer_perf.extensions.models.quantisation import Stored
from pytest_flashinfer_perf.spec.presets import Presets, Spread, shared

TOKENS = (1, 8, 64, 512, 4096, 8192)

# In the order of tiers; of hybrid models only the experts.
_GROUPED = (
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
_LATENT = ("deepseek-v3", "deepseek-r1", "kimi-k2")
_HYBRID = ("qwen3.5-35b-a3b",)

# Of models without a config.json here: attention, then hidden size, feed-forward size and vocabulary.
_WRITTEN = {
    "qwen3-4b": (Grouped(32, 8, 128), 2560, 9728, 151936),
    "qwen3-14b": (Grouped(40, 8, 128), 5120, 17408, 151936),
    "gemma-3-12b": (Grouped(16, 8, 256), 3840, 15360, 262208),
}
_OF_EXPERTS = (*(Spread(ep=ep) for ep in (1, 8, 32)), *(Spread(tp=tp) for tp in (2, 8)))


def _described(*names: str) -> Mapping[str, Description]:
    return {name: _written(name) if name in _WRITTEN else shipped.model(name) for name in names}


def _written(name: str) -> Description:
    attention, hidden, width, vocabulary = _WRITTEN[name]
    layer = Layer(attention, Dense(width), Stored())
    return Description(name, "", hidden, vocabulary, tied=True, layers=((layer, 1),))


def _with_experts() -> Mapping[str, Description]:
    every = _described(*_LATENT, *_GROUPED, *_HYBRID)
    return {name: model for name, model in every.items() if model.first(Experts)}


def attention_of(model: Description) -> Grouped | Latent:
    """That of the first layer: in each of these models all layers have the same heads."""
    return model.first(Grouped) or model.first(Latent)  # type: ignore[return-value] # each of these has one


def _heads(model: Description, over: Spread) -> dict[str, Any]:
    """When it is prefilled, a latent layer's keys and values are expanded, a head for each query head."""
    here = attention_of(model).part(over.tp)
    if isinstance(here, Grouped):
        kv_heads, query, value = here.kv_heads, here.head_dim, here.head_dim
    else:
        kv_heads, query, value = here.heads, here.query, here.v_dim
    return {"num_qo_heads": here.heads, "num_kv_heads": kv_heads, "head_dim_qk": query, "head_dim_vo": value}


def _absorbed(model: Description, over: Spread) -> dict[str, Any]:
    """Decoding: the queries meet the latent cache itself."""
    here = attention_of(model).part(over.tp)
    assert isinstance(here, Latent)
    return {"num_qo_heads": here.heads, "head_dim_ckv": here.kv_rank, "head_dim_kpe": here.rope_dim}


def _projections(model: Description, over: Spread) -> dict[str, Any]:
    """Each one's n and k: first and last are split by columns, the inner ones by rows."""
    here, dense = attention_of(model).part(over.tp), model.first(Dense)
    qkv, out = (here.down, here.heads * here.v_dim) if isinstance(here, Latent) else (here.qkv, here.out)
    widths = {"qkv": (qkv, model.hidden), "o": (model.hidden, out)}
    if dense is not None:
        width = dense.width // over.tp
        widths |= {"gate-up": (2 * width, model.hidden), "down": (model.hidden, width)}
    widths["lm-head"] = (model.vocabulary // over.tp, model.hidden)
    return {name: {"n": n, "k": k} for name, (n, k) in widths.items()}


def _experts(model: Description, over: Spread) -> dict[str, Any]:
    """Each expert's part on this GPU, and the first of those that are here."""
    layer = _experts_of(model, over)
    return {
        "hidden_size": model.hidden,
        "intermediate_size": layer.width // over.tp,
        "num_experts": layer.count,
        "local_num_experts": layer.count // over.ep,
        "local_expert_offset": 0,
        "top_k": layer.chosen,
        **layer.routing.parameters,
    }


def _chosen_experts(model: Description, over: Spread) -> dict[str, Any]:
    """The parameters for a kernel that receives the chosen experts."""
    layer = _experts_of(model, over)
    sizes = {"hidden_size": model.hidden, "intermediate_size": layer.width, "num_experts": layer.count}
    return {**sizes, "top_k": layer.chosen, "tp_size": over.tp, "tp_rank": 0, "ep_size": over.ep, "ep_rank": 0}


def _experts_of(model: Description, over: Spread) -> Experts:
    layer = model.first(Experts)
    assert layer is not None
    shared(layer.count, over.ep, "experts")
    shared(layer.width, over.tp, "columns of an expert")
    return layer


def _of(*names: str) -> Callable[[], Mapping[str, Description]]:
    return functools.partial(_described, *names)


attention = Presets(_of(*_GROUPED, *_WRITTEN), _heads)
latent = Presets(_of(*_LATENT), _absorbed)
expanded = Presets(_of(*_GROUPED, *_WRITTEN, *_LATENT), _heads)
projections = Presets(_of(*_GROUPED, *_WRITTEN, *_LATENT), _projections)
experts = Presets(_with_experts, _experts, _OF_EXPERTS)
chosen_experts = Presets(_with_experts, _chosen_experts, _OF_EXPERTS)
