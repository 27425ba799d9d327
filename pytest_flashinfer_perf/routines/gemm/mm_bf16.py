"""mm_bf16: a product in bfloat16, with or without a bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _declared
from pytest_flashinfer_perf.routines.gemm import _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._shared import Operands, Product
from pytest_flashinfer_perf.spec import Built, LaunchOptions, autotune, flag
from pytest_flashinfer_perf.spec.dtypes import TORCH

API = "gemm.mm_bf16"
BFLOAT16_ONLY = ("tgv", "tinygemm", "cute-dsl")
NO_BIAS = ("cutlass", "cutile")
NO_PDL = ("cutlass", "cutile", "cublaslt")


@dataclass(frozen=True)
class MmBf16(Product):
    out_dtype: str = _shared.out_dtype_or_float32()
    bias: bool = flag("add a bias to each row", default=False, letter="bias")
    enable_pdl: bool = flag("programmatic dependent launch", default=False, letter="pdl")
    autotune: bool = autotune()


class MmBf16Inputs(NamedTuple):
    a: Tensor  # [m, k]
    b: Tensor  # [n, k]: a call gets its transposed view
    bias: Tensor | None  # [n]
    out: Tensor


def inputs(p: MmBf16, rand: torch.Generator, device: torch.device) -> MmBf16Inputs:
    a, b = (_shared.drawn(rand, rows, p.k).bfloat16() for rows in (p.m, p.n))
    bias = torch.randn(p.n, device=device, generator=rand).bfloat16() if p.bias else None
    return MmBf16Inputs(a, b, bias, torch.empty(p.m, p.n, dtype=TORCH[p.out_dtype], device=device))


mm_bf16 = _shared.routine("mm_bf16", MmBf16, inputs, lambda _p, x: Operands(x.a, x.b, bias=x.bias), "bfloat16")


def _limits(p: MmBf16, backend: str, device: Device) -> Iterator[str]:
    if backend in BFLOAT16_ONLY and p.out_dtype != "bfloat16":
        yield f"{backend} writes bfloat16 only: use cudnn"
    if p.bias and backend in NO_BIAS:
        yield f"{backend} adds no bias: use cudnn or tinygemm"
    if p.bias and backend == "cublaslt" and not _declared.documented(API, "cuBLASLt supports bias"):
        yield "cublaslt adds no bias in this flashinfer: use cudnn, or flashinfer 0.7.2"
    if p.bias and backend == "cublaslt" and p.out_dtype != "bfloat16":
        yield "cublaslt adds a bias to bfloat16 only"
    if p.enable_pdl and backend in NO_PDL:
        yield f"{backend} has no programmatic dependent launch: use tinygemm or tgv"
    if backend == "tinygemm" and p.n % 16:
        yield f"tinygemm needs an n in multiples of 16, not {p.n}"
    if backend == "tinygemm" and p.k % 8:
        yield f"tinygemm reads rows of whole 16 bytes, so that k must come in multiples of 8, not {p.k}"
    yield from _shared.auto_limits(backend, device)
    if p.autotune and backend == "cutile":
        yield "cutile is not tuned by --autotune: leave it out"


@mm_bf16.backend(
    "cudnn", "cublaslt", "tinygemm", "cutlass", "tgv", "cute-dsl", "cutile", "auto", api=API, limits=_limits, tunes=True
)
def _mm(p: MmBf16, _x: MmBf16Inputs, options: LaunchOptions) -> Built[MmBf16Inputs]:
    from flashinfer.gemm import mm_bf16

    keywords = {"pdl": p.enable_pdl, "out_dtype": TORCH[p.out_dtype], "backend": options.backend}
    return Built(lambda x: mm_bf16(x.a, x.b.mT, x.bias, out=x.out, **keywords), options.backend)


_tiers.smoke(
    mm_bf16,
    MmBf16(m=16, n=256, k=512),
    {"m": 1},
    {"n": 208, "k": 272},
    {"out_dtype": "float16"},
    {"out_dtype": "float32"},
    {"bias": True},
    {"enable_pdl": True},
    {"autotune": True},
)
_tiers.of_models(mm_bf16, {}, {}, {"bias": True}, {"autotune": True})
