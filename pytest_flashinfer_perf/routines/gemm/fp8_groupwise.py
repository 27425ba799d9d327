"""gemm_fp8_nt_groupwise: FP8 with a scale for each 1x128 of the activations and each 128x128 of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf import models
from pytest_flashinfer_perf.cost import Cost
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.dtypes import TORCH, bytes_of
from pytest_flashinfer_perf.routine import Built, How, Model, Routine, Shape
from pytest_flashinfer_perf.routines.gemm import _groupwise, _shared
from pytest_flashinfer_perf.routines.gemm._groupwise import GroupwiseParams

API = "gemm.gemm_fp8_nt_groupwise"


@dataclass(frozen=True)
class Fp8Groupwise(GroupwiseParams):
    """One product."""


class Inputs(NamedTuple):
    a: Tensor  # [m, k]
    b: Tensor  # [n, k]
    a_scale: Tensor  # [m, k / 128], or [k / 128, m]
    b_scale: Tensor  # [n / 128, k / 128], or [k / 128, n / 128]
    out: Tensor


def inputs(p: Fp8Groupwise, rand: torch.Generator, device: torch.device) -> Inputs:
    a, a_scale = _groupwise.activations(p, p.m, rand)
    b, b_scale = _groupwise.weights(p, rand)
    return Inputs(a, b, a_scale, b_scale, torch.empty(p.m, p.n, dtype=TORCH[p.out_dtype], device=device))


def _meant(p: Fp8Groupwise, x: Inputs) -> tuple[Tensor, Tensor]:
    return _groupwise.meant_activations(p, x.a, x.a_scale), _groupwise.meant_weights(p, x.b, x.b_scale)


def reference(p: Fp8Groupwise, x: Inputs) -> tuple[Tensor]:
    return (_shared.product(*_meant(p, x)),)


def cost(p: Fp8Groupwise, x: Inputs) -> Cost:
    """Both operands with their scales, and the output, once each."""
    return Cost(2 * p.m * p.n * p.k, sum(t.nbytes for t in x), p.input_dtype)


def footprint(p: Fp8Groupwise) -> int:
    """Operands in fp32, scaled and stored, one at a time; both again for the reference; the output and its check."""
    return 13 * max(p.m, p.n) * p.k + 5 * (p.m + p.n) * p.k + (bytes_of(p.out_dtype) + 24) * p.m * p.n


fp8_groupwise = Routine(
    "gemm_fp8_nt_groupwise",
    family="gemm",
    params=Fp8Groupwise,
    inputs=inputs,
    outputs=lambda x: (x.out,),
    reference=reference,
    cost=cost,
    tolerances=lambda p, _backend: (_shared.tolerance(p.out_dtype),),
    footprint=footprint,
    cuda_graph=True,
)


def _limits(p: Fp8Groupwise, backend: str, _device: Device) -> Iterator[str]:
    if backend == "cutlass" and p.m % 4:
        yield f"cutlass needs an m in steps of 4, not {p.m}: pad it"
    yield from _groupwise.limits(p, backend)
    if backend == "trtllm" and p.scale_major_mode != "MN":
        yield "trtllm takes MN-major scales only: set scale_major_mode to MN"
    if backend == "trtllm" and p.k < 256:
        yield f"trtllm needs a k of at least 256, not {p.k}: use cutlass"
    if backend == "trtllm" and p.out_dtype != "bfloat16":
        yield "trtllm writes bfloat16 only: use cutlass"


@fp8_groupwise.backend("cutlass", "trtllm", "cutile", api=API, limits=_limits)
def _gemm(p: Fp8Groupwise, _x: Inputs, how: How) -> Built[Inputs]:
    from flashinfer.gemm import gemm_fp8_nt_groupwise

    def launch(x: Inputs) -> object:
        return gemm_fp8_nt_groupwise(
            x.a,
            x.b,
            x.a_scale,
            x.b_scale,
            scale_major_mode=p.scale_major_mode,
            mma_sm=p.mma_sm,
            out=x.out,
            backend=how.backend,
        )

    return Built(launch, how.backend)


@fp8_groupwise.backend("torch")
def _torch(p: Fp8Groupwise, _x: Inputs, _how: How) -> Built[Inputs]:
    half = TORCH[p.out_dtype]

    def launch(x: Inputs) -> object:
        a, b = _meant(p, x)
        return torch.mm(a.to(half), b.to(half).transpose(0, 1), out=x.out)

    return Built(launch, "torch")


SMOKE = Fp8Groupwise(m=16, n=256, k=512)


@fp8_groupwise.tier("smoke")
def _smoke() -> Iterator[Shape[Fp8Groupwise]]:
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"scale_major_mode": "K"},
        {"out_dtype": "float16"},
        {"n": 200},
        {"m": 1, "k": 128},
        {"mma_sm": 2},
    )
    yield from (Shape(replace(SMOKE, **change)) for change in changes)


def _of(projection: Model, m: int, **more: Any) -> Shape[Fp8Groupwise]:
    return Shape(Fp8Groupwise(m=m, **{**projection.settles, **more}), projection)


@fp8_groupwise.tier("default")
def _default() -> Iterator[Shape[Fp8Groupwise]]:
    """Models' projections, from one token to a large prompt, in both orders of scales."""
    for projection in _shared.projections(models.projections("llama-3.1-70b")):
        yield from (_of(projection, m) for m in (16, 256, 4096))
    for projection in _shared.projections(models.projections("llama-3.1-70b", 8))[:2]:
        yield from (_of(projection, m, scale_major_mode="K") for m in (16, 4096))


@fp8_groupwise.sweep(models.projections)
def _sweep(model: Model) -> Iterator[Shape[Fp8Groupwise]]:
    for projection in _shared.projections(model):
        yield from (_of(projection, m) for m in projection.batches(*_shared.M))
