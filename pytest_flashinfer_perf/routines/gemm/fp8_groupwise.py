"""gemm_fp8_nt_groupwise: FP8 with a scale for each 1x128 of the activations and each 128x128 of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf import models
from pytest_flashinfer_perf.cost import Cost
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.dtypes import FP8, HALF, TORCH, bytes_of
from pytest_flashinfer_perf.params import Fault, Params, flag
from pytest_flashinfer_perf.quantise import blocks, layouts
from pytest_flashinfer_perf.routine import Built, How, Model, Routine, Shape
from pytest_flashinfer_perf.routines.gemm import _shared

API = "gemm.gemm_fp8_nt_groupwise"


@dataclass(frozen=True)
class Fp8Groupwise(Params):
    m: int = flag("rows of the activations", letter="m", minimum=1, draw=(1, 4, 130))
    n: int = flag("rows of the weights", letter="n", minimum=1, draw=(8, 128, 200))
    k: int = flag("columns of both", letter="k", minimum=1, draw=(128, 256, 384))
    tile_size: int = flag("rows and columns that share a scale", default=blocks.GROUP, letter="t", minimum=1)
    scale_major_mode: str = flag("order of the scales", default="MN", choices=("MN", "K"))
    mma_sm: int = flag("cutlass: SMs that share a tile, 1 or 2", default=1, letter="sm", minimum=1)
    input_dtype: str = flag("type of the activations", default=FP8[0], letter="a", choices=FP8)
    mat2_dtype: str = flag("type of the weights", default=FP8[0], letter="b", choices=FP8)
    out_dtype: str = flag("type of the output", default=HALF[0], letter="o", choices=HALF)

    def faults(self) -> Iterator[Fault]:
        if self.tile_size != blocks.GROUP:
            yield "tile_size", f"the kernels have scales for {blocks.GROUP} columns, not {self.tile_size}"
        if self.k % blocks.GROUP:
            yield "k", f"{self.k} is not a multiple of {blocks.GROUP}"
        if self.mma_sm > 2:
            yield "mma_sm", f"must be 1 or 2, got {self.mma_sm}"


class Inputs(NamedTuple):
    a: Tensor  # [m, k]
    b: Tensor  # [n, k]
    a_scale: Tensor  # [m, k / 128], or [k / 128, m]
    b_scale: Tensor  # [n / 128, k / 128], or [k / 128, n / 128]
    out: Tensor


def inputs(p: Fp8Groupwise, rand: torch.Generator, device: torch.device) -> Inputs:
    a = _drawn(rand, p.m, p.k, 1, p.input_dtype)
    b = _drawn(rand, p.n, p.k, blocks.GROUP, p.mat2_dtype)
    a_scale, b_scale = (layouts.mn_major(q.scales) if p.scale_major_mode == "MN" else q.scales for q in (a, b))
    return Inputs(a.values, b.values, a_scale, b_scale, torch.empty(p.m, p.n, dtype=TORCH[p.out_dtype], device=device))


def _drawn(rand: torch.Generator, rows: int, k: int, tile_rows: int, dtype: str) -> blocks.Groupwise:
    """The product's elements are near 1; tiles differ in size, or a wrong scale would not be seen."""
    drawn = torch.randn(rows, k, device=rand.device, generator=rand) / math.sqrt(math.sqrt(k))
    tiles = (-(-rows // tile_rows), k // blocks.GROUP)
    sizes = torch.randint(-2, 3, tiles, device=rand.device, generator=rand).float().exp2()
    by_row = sizes.repeat_interleave(tile_rows, 0)[:rows]
    return blocks.groupwise(drawn * by_row.repeat_interleave(blocks.GROUP, 1), tile_rows, TORCH[dtype])


def _meant(p: Fp8Groupwise, x: Inputs) -> tuple[Tensor, Tensor]:
    """The operands that the kernel really multiplies."""
    linear = (s.transpose(0, 1) if p.scale_major_mode == "MN" else s for s in (x.a_scale, x.b_scale))
    sides = zip((x.a, x.b), linear, (1, blocks.GROUP), strict=True)
    a, b = (blocks.Groupwise(values, scales, rows).dequantised() for values, scales, rows in sides)
    return a, b


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
    if backend == "cutile" and p.scale_major_mode != "K":
        yield "cutile takes K-major scales only: set scale_major_mode to K"
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
