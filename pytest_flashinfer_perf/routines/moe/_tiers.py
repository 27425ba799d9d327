"""The shapes that the three trtllm routines are measured with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from pytest_flashinfer_perf.models import layers
from pytest_flashinfer_perf.routines.moe._trtllm import TrtllmMoe
from pytest_flashinfer_perf.spec.params import ParamError
from pytest_flashinfer_perf.spec.presets import Model
from pytest_flashinfer_perf.spec.routine import Routine, Shape

P = TypeVar("P", bound=TrtllmMoe)
Changes = Sequence[Mapping[str, Any]]

GROUPS = {"n_group": 4, "topk_group": 2, "use_routing_bias": True}
LLAMA4 = {"routing_method": "llama4", "top_k": 1}
SMOKE: Mapping[str, Any] = {
    "num_tokens": 16,
    "hidden_size": 256,
    "intermediate_size": 128,
    "num_experts": 16,
    "top_k": 4,
    **GROUPS,
}
UNGROUPED = layers.UNGROUPED
METHODS: Changes = (
    {},
    {"num_tokens": 1},
    *({**UNGROUPED, "routing_method": method} for method in ("renormalize", "renormalize_naive", "topk")),
    {**UNGROUPED, **LLAMA4},
    UNGROUPED,
    {"expert_load": "zipf"},
    {"expert_load": "one"},
    {"local_expert_offset": 8, "local_num_experts": 8},
)


def declare(routine: Routine[P, Any], base: P, smoke: Changes, each: Changes = ({},)) -> None:
    """Every routing method, and the routine's own changes, in `smoke`; each kind of weights of models in the others."""
    routine.tier("smoke")(lambda: (Shape(replace(base, **change)) for change in (*METHODS, *smoke)))

    def shapes(model: Model, tokens: Sequence[int], *changes: Mapping[str, Any]) -> Iterator[Shape[P]]:
        for change in changes:
            yield from (Shape(routine.params(num_tokens=t, **{**model.parameters, **change}), model) for t in tokens)

    @routine.tier("default")
    def _default() -> Iterator[Shape[P]]:
        """DeepSeek-V3 on one of 32 GPUs, Qwen3-30B-A3B whole; few tokens of the model that mono_moe is made for."""
        deepseek, qwen3 = layers.experts("deepseek-v3", ep=32), layers.experts("qwen3-30b-a3b")
        yield from shapes(deepseek, (16, 256, 4096), *each)
        yield from shapes(qwen3, (1, 4096), *each)
        for model in (deepseek, qwen3):
            yield from shapes(model, (256,), {"expert_load": "zipf"}, {"expert_load": "one"})
            yield from (replace(shape, backends=("trtllm",)) for shape in shapes(model, (256,), {"autotune": True}))
        yield from shapes(layers.experts("llama-4-maverick", ep=8), (16, 4096), {})
        yield from shapes(layers.experts("qwen3.5-35b-a3b"), (1, 4, 8), {})

    @routine.sweep(layers.experts)
    def _sweep(model: Model) -> Iterator[Shape[P]]:
        """The shapes of a model; none if its weights on so many GPUs do not fit into blocks."""
        with suppress(ParamError):
            yield from shapes(model, layers.TOKENS, *each)
