"""The shapes of the GEMM routines: models' projections for plain products, heads and experts for many at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from pytest_flashinfer_perf.routines import layers
from pytest_flashinfer_perf.spec import Model, ParamError, Params, Routine, Shape

P = TypeVar("P", bound=Params)

M = (1, 16, 64, 256, 1024, 4096, 8192)
Change = dict[str, Any]


def smoke(routine: Routine[P, Any], base: P, *changes: Change) -> None:
    """The base, and it with each change: every flag that decides which kernel runs."""
    routine.tier("smoke")(lambda: (Shape(replace(base, **change)) for change in ({}, *changes)))


def of_models(routine: Routine[P, Any], always: Change, *also: Change) -> None:
    """A large model's projections, one of them on one of 8 GPUs with each change; `full` has all models."""

    @routine.tier("default")
    def _default() -> Iterator[Shape[P]]:
        for projection in _projections(layers.projections("llama-3.1-70b")):
            yield from (_of(routine, projection, {**always, "m": m}) for m in (16, 256, 4096))
        output = _projections(layers.projections("llama-3.1-70b", 8))[1]
        yield from (_of(routine, output, {**always, **change, "m": m}) for change in also for m in (16, 4096))

    @routine.sweep(layers.projections)
    def _sweep(model: Model) -> Iterator[Shape[P]]:
        """Shapes of a model, without those whose k is too small for the kernels on so many GPUs."""
        for projection in _projections(model):
            for m in projection.batches(*M):
                with suppress(ParamError):
                    yield _of(routine, projection, {**always, "m": m})


def _projections(model: Model) -> list[Model]:
    """The model once for each of its projections, with that projection's parameters."""
    return [Model(f"{model.name}-{name}", nk, model.dp) for name, nk in model.parameters.items()]


def _of(routine: Routine[P, Any], projection: Model, more: Change) -> Shape[P]:
    return Shape(routine.params(**{**projection.parameters, **more}), projection)


def _shape(routine: Routine[P, Any], sizes: Change, **more: Any) -> Shape[P]:
    return Shape(routine.params(**{**sizes, **more}))


SAMPLE: Change = {"batch_size": 64, "m": 4, "n": 1024, "k": 7168}
SQUARE: Change = {"batch_size": 8, "m": 4096, "n": 4096, "k": 4096}


def of_batches(routine: Routine[P, Any], *also: Change) -> None:
    """Upstream's sample, and it with each change; DeepSeek's heads, absorbing keys and values; large squares."""

    @routine.tier("default")
    def _default() -> Iterator[Shape[P]]:
        yield from (_shape(routine, sizes) for sizes in (SAMPLE, SQUARE))
        yield from (_shape(routine, SAMPLE, **change) for change in also)
        yield from (_shape(routine, heads, m=m) for heads in _absorbed(128) for m in (1, 64, 1024))

    @routine.tier("full")
    def _full() -> Iterator[Shape[P]]:
        heads = (sizes for count in (16, 32, 64, 128) for sizes in _absorbed(count))
        yield from (_shape(routine, sizes, m=m) for sizes in (SAMPLE, SQUARE, *heads) for m in M)


def _absorbed(heads: int) -> tuple[Change, Change]:
    return {"batch_size": heads, "n": 512, "k": 128}, {"batch_size": heads, "n": 128, "k": 512}


def of_experts(routine: Routine[P, Any], *also: Change) -> None:
    """DeepSeek-V3's experts on one of 8, 32 and 256 GPUs: gate and up, then down; equal and ragged."""

    @routine.tier("default")
    def _default() -> Iterator[Shape[P]]:
        for groups, m in ((32, 64), (8, 256), (1, 4096)):
            yield from _experts(routine, {"group_size": groups, "m": m})

    @routine.tier("full")
    def _full() -> Iterator[Shape[P]]:
        for groups in (1, 4, 8, 32, 64):
            for m in (4, 16, 64, 256, 1024):
                sizes = {"group_size": groups, "m": m}
                yield from (shape for change in ({}, *also) for shape in _experts(routine, {**sizes, **change}))


def _experts(routine: Routine[P, Any], sizes: Change) -> Iterator[Shape[P]]:
    for n, k in ((4096, 7168), (7168, 2048)):
        yield from (_shape(routine, sizes, n=n, k=k, ragged=ragged) for ragged in (False, True))
