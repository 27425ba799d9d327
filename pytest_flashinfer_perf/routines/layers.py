"""The layers of published models as parameters of routines on one GPU, which the tiers of shapes run.

Each set of presets names the models that have such a layer, and is what a routine declares its sweep with.
"""

from __future__ import annotations

from typing import Any

from pytest_flashinfer_perf.routines.published_models import (
    GROUPED,
    HYBRID,
    LATENT,
    GroupedHeads,
    Latent,
    PublishedModel,
    RoutedExperts,
)
from pytest_flashinfer_perf.spec.presets import Presets, Spread, shared

TOKENS = (1, 8, 64, 512, 4096, 8192)

_WITH_EXPERTS = {name: model for name, model in (LATENT | GROUPED | HYBRID).items() if model.experts}
_OF_EXPERTS = (*(Spread(ep=ep) for ep in (1, 8, 32)), *(Spread(tp=tp) for tp in (2, 8)))


def _heads(model: PublishedModel, over: Spread) -> dict[str, Any]:
    """The heads of a layer: a latent layer that is prefilled has a KV head for each query head."""
    here = model.heads.part(over.tp)
    if isinstance(here, GroupedHeads):
        kv_heads, query, value = here.kv_heads, here.head_dim, here.head_dim
    else:
        kv_heads, query, value = here.heads, here.query, here.v_dim
    return {"num_qo_heads": here.heads, "num_kv_heads": kv_heads, "head_dim_qk": query, "head_dim_vo": value}


def _absorbed(model: PublishedModel, over: Spread) -> dict[str, Any]:
    """Decoding: the queries meet the latent cache itself."""
    here = model.heads.part(over.tp)
    assert isinstance(here, Latent)
    return {"num_qo_heads": here.heads, "head_dim_ckv": here.kv_rank, "head_dim_kpe": here.rope_dim}


def _projections(model: PublishedModel, over: Spread) -> dict[str, Any]:
    """The n and k of each projection: GPUs split qkv, gate-up and lm-head by columns, o and down by rows."""
    here = model.heads.part(over.tp)
    qkv, out = (here.down, here.heads * here.v_dim) if isinstance(here, Latent) else (here.qkv, here.out)
    widths = {"qkv": (qkv, model.hidden), "o": (model.hidden, out)}
    if model.width is not None:
        width = model.width // over.tp
        widths |= {"gate-up": (2 * width, model.hidden), "down": (model.hidden, width)}
    widths["lm-head"] = (model.vocabulary // over.tp, model.hidden)
    return {name: {"n": n, "k": k} for name, (n, k) in widths.items()}


def _experts(model: PublishedModel, over: Spread) -> dict[str, Any]:
    """The sizes of an expert's part on this GPU, and the first expert that is here."""
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


def _chosen_experts(model: PublishedModel, over: Spread) -> dict[str, Any]:
    """The parameters for a kernel that receives the chosen experts."""
    layer = _experts_of(model, over)
    sizes = {"hidden_size": model.hidden, "intermediate_size": layer.width, "num_experts": layer.count}
    return {**sizes, "top_k": layer.chosen, "tp_size": over.tp, "tp_rank": 0, "ep_size": over.ep, "ep_rank": 0}


def _experts_of(model: PublishedModel, over: Spread) -> RoutedExperts:
    layer = model.experts
    assert layer is not None
    shared(layer.count, over.ep, "experts")
    shared(layer.width, over.tp, "columns of an expert")
    return layer


attention = Presets(GROUPED, _heads)
latent = Presets(LATENT, _absorbed)
expanded = Presets(GROUPED | LATENT, _heads)
projections = Presets(GROUPED | LATENT, _projections)
experts = Presets(_WITH_EXPERTS, _experts, _OF_EXPERTS)
chosen_experts = Presets(_WITH_EXPERTS, _chosen_experts, _OF_EXPERTS)
