"""All kernels that one GPU of a deployment runs in a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.models import attention, elementwise, feed_forward
from pytest_flashinfer_perf.models.description import (
    Dense,
    Description,
    Experts,
    Grouped,
    Latent,
    Layer,
    Recurrent,
)
from pytest_flashinfer_perf.models.kernel import Kernel
from pytest_flashinfer_perf.models.products import Weights, product
from pytest_flashinfer_perf.models.step import Step

QUANTISED = ("mm_fp8", "gemm_fp8_nt_groupwise", "mm_fp4")  # they take activations that a kernel before them quantised


def of_step(model: Description, step: Step) -> list[Kernel]:
    """One entry for all layers that run the same."""
    found: dict[Any, Kernel] = {}
    for kernel in _all(model, step):
        known = found.get(kernel.same)
        found[kernel.same] = kernel if known is None else known.joined(kernel)
    return list(found.values())


def _all(model: Description, step: Step) -> Iterator[Kernel]:
    for layer, count in model.layers:
        for kernel in _of_layer(model, layer, step):
            yield kernel.times(count)
    yield from _around(model, step)
    yield from _between_gpus(model, step)


def _of_layer(model: Description, layer: Layer, step: Step) -> Iterator[Kernel]:
    inner = list(_parts(model, layer, step))
    yield from inner
    quantised = sum(kernel.calls[0].routine in QUANTISED for kernel in inner if kernel.calls)
    if quantised:
        yield Kernel.gap_of("quantising of activations", "no routine measures it", count=quantised)


def _parts(model: Description, layer: Layer, step: Step) -> Iterator[Kernel]:
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
    yield elementwise.add_and_norm(step.tokens, hidden).times(layer.norms)


def _around(model: Description, step: Step) -> Iterator[Kernel]:
    """The vocabulary's tables and the choice of a token; the first norm, alone of all, has nothing to add to."""
    vocabulary = -(-model.vocabulary // step.spread.tp)
    yield elementwise.norm("first norm", step.tokens, model.hidden)
    table = 0 if model.tied else vocabulary * model.hidden
    yield Kernel.gap_of("embedding", "no routine measures the lookup", parameters=table)
    yield product("lm-head", step.requests, Weights(vocabulary, model.hidden))
    yield elementwise.sampling(model.vocabulary, step)


def _between_gpus(model: Description, step: Step) -> Iterator[Kernel]:
    mixers = sum(count for layer, count in model.layers if layer.mixer is not None)
    feeds = sum(count for layer, count in model.layers if layer.feed is not None)
    routed = sum(count for layer, count in model.layers if isinstance(layer.feed, Experts))
    if step.spread.tp > 1:
        yield Kernel.gap_of("all-reduce", "cases run on one GPU", count=mixers + feeds)
    if step.spread.ep > 1:
        yield Kernel.gap_of("all-to-all", "cases run on one GPU", count=2 * routed)


@dataclass(frozen=True)
class Coverage:
    """Which part of the weights, and of the operations on them, has a case."""

    weights: float
    flops: float


def coverage(kernels: list[Kernel]) -> Coverage:
    return Coverage(*(_share(kernels, of) for of in ("bytes", "flops")))


def _share(kernels: list[Kernel], of: str) -> float:
    whole = sum(getattr(kernel, of) for kernel in kernels)
    return sum(getattr(kernel, of) for kernel in kernels if not kernel.gap) / whole if whole else 0.0
