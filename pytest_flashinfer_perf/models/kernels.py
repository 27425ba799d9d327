"""All kernels that one GPU of a deployment runs in a step, from the description of its model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_flashinfer_perf.models import attention, feed_forward
from pytest_flashinfer_perf.models.config_json import ConfigError
from pytest_flashinfer_perf.models.deployment import Step
from pytest_flashinfer_perf.models.description import (
    Dense,
    Description,
    Experts,
    Grouped,
    Latent,
    Layer,
    Recurrent,
)
from pytest_flashinfer_perf.models.kernel import ProductWeights, add_and_norm, gap, norm, product, sampling
from pytest_flashinfer_perf.models.quantisation import BITS
from pytest_flashinfer_perf.rows.step import StepKernel

QUANTISED = ("mm_fp8", "gemm_fp8_nt_groupwise", "mm_fp4")  # they take activations that a kernel before them quantised


MULTIPLY_BF16 = ("mm_bf16", "bmm_bf16", "cutlass_fused_moe")


def of_step(model: Description, step: Step) -> list[StepKernel]:
    """One entry for all layers that run the same."""
    if step.spread.ep > 1 and model.first(Experts) is None:
        raise ConfigError(f"{model.name} has no experts, which {step.spread.ep} GPUs could share: leave out ep")
    found: dict[Any, StepKernel] = {}
    for one in _all(model, step):
        typed = _of_type(one, model.dtype)
        same = _same(typed)
        found[same] = found[same].joined(typed) if same in found else typed
    return list(found.values())


def _same(one: StepKernel) -> tuple[Any, ...]:
    """What kernels have in common that are one entry of a step."""
    return one.name, one.gap, one.note, tuple(tuple(sorted(problem.items(), key=str)) for problem in one.problems)


def _of_type(one: StepKernel, dtype: str) -> StepKernel:
    """With weights of the config's own type, where the quantisation leaves them as they are."""
    if dtype == "bf16" or one.stored != "bf16":
        return one
    typed = replace(one, stored=dtype, weight_bytes=one.parameters * BITS[dtype] / 8)
    if not any(problem["routine"] in MULTIPLY_BF16 for problem in one.problems):
        return typed
    if dtype == "fp32":
        return replace(typed, problems=(), gap="no routine multiplies weights of float32")
    return replace(typed, note="; ".join(filter(None, (one.note, "measured in bfloat16, its weights are float16"))))


def _all(model: Description, step: Step) -> Iterator[StepKernel]:
    for layer, count in model.layers:
        for one in _of_layer(model, layer, step):
            yield one.times(count)
    yield from _around(model, step)
    yield from _between_gpus(model, step)


def _of_layer(model: Description, layer: Layer, step: Step) -> Iterator[StepKernel]:
    inner = list(_parts(model, layer, step))
    yield from inner
    quantised = sum(one.problems[0]["routine"] in QUANTISED for one in inner if one.problems)
    if quantised:
        yield gap("quantising of activations", "no routine measures it").times(quantised)


def _parts(model: Description, layer: Layer, step: Step) -> Iterator[StepKernel]:
    hidden, stored = model.hidden, layer.stored
    match layer.mixer:
        case Grouped():
            yield from attention.grouped(layer.mixer, hidden, stored.mixer, step)
        case Latent():
            yield from attention.latent(layer.mixer, hidden, stored.mixer, step)
        case Recurrent():
            yield from attention.recurrent(layer.mixer, hidden, stored.mixer, step)
    match layer.feed:
        case Dense():
            yield from feed_forward.dense(layer.feed, hidden, stored.dense, step)
        case Experts():
            yield from feed_forward.experts(layer.feed, hidden, stored, step)
    yield add_and_norm(step.tokens, hidden).times(layer.norms)


def _around(model: Description, step: Step) -> Iterator[StepKernel]:
    """The vocabulary's tables and the choice of a token; the first norm, alone of all, has nothing to add to."""
    vocabulary = -(-model.vocabulary // step.spread.tp)
    yield norm("first norm", step.tokens, model.hidden)
    table = 0 if model.tied else vocabulary * model.hidden
    yield gap("embedding", "no routine measures the lookup", parameters=table)
    yield product("lm-head", step.requests, ProductWeights(vocabulary, model.hidden))
    yield sampling(model.vocabulary, step)


def _between_gpus(model: Description, step: Step) -> Iterator[StepKernel]:
    mixers = sum(count for layer, count in model.layers if layer.mixer is not None)
    feeds = sum(count for layer, count in model.layers if layer.feed is not None)
    routed = sum(count for layer, count in model.layers if isinstance(layer.feed, Experts))
    if step.spread.tp > 1:
        yield gap("all-reduce", "cases run on one GPU").times(mixers + feeds)
    if step.spread.ep > 1:
        yield gap("all-to-all", "cases run on one GPU").times(2 * routed)


class Coverage(NamedTuple):
    """Which part of the weights, and of the operations on them, has a case."""

    weights: float
    flops: float


def coverage(kernels: Sequence[StepKernel]) -> Coverage:
    return Coverage(_share(kernels, "weight_bytes"), _share(kernels, "flops"))


def _share(kernels: Sequence[StepKernel], of: str) -> float:
    whole = sum(getattr(one, of) for one in kernels)
    return sum(getattr(one, of) for one in kernels if not one.gap) / whole if whole else 0.0
