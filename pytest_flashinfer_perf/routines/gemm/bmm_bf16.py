"""bmm_bf16: batched products in bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines.gemm import _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._shared import Batched, Operands, Product
from pytest_flashinfer_perf.spec.dtypes import TORCH
from pytest_flashinfer_perf.spec.params import autotune
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions

API = "gemm.bmm_bf16"
CAKE_K = (64, 256, 1024)


@dataclass(frozen=True)
class BmmBf16(Product, Batched):
    out_dtype: str = _shared.out_dtype_or_float32()
    autotune: bool = autotune()


class BmmBf16Inputs(NamedTuple):
    a: Tensor  # [batch, m, k]
    b: Tensor  # [batch, n, k]: a call gets its transposed view
    out: Tensor


def inputs(p: BmmBf16, rand: torch.Generator, device: torch.device) -> BmmBf16Inputs:
    a, b = (_shared.drawn(rand, p.batch_size, rows, p.k).bfloat16() for rows in (p.m, p.n))
    return BmmBf16Inputs(a, b, torch.empty(p.batch_size, p.m, p.n, dtype=TORCH[p.out_dtype], device=device))


bmm_bf16 = _shared.routine("bmm_bf16", BmmBf16, inputs, lambda _p, x: Operands(x.a, x.b), "bfloat16")


def _limits(p: BmmBf16, backend: str, device: Device) -> Iterator[str]:
    if backend == "tgv" and p.out_dtype != "bfloat16":
        yield "tgv writes bfloat16 only: use cudnn"
    if backend == "cake" and (p.n % 8 or p.k not in CAKE_K):
        yield f"cake needs an n in steps of 8 and a k of {', '.join(map(str, CAKE_K))}, not {p.n} and {p.k}"
    yield from _shared.auto_limits(backend, device)
    if p.autotune and backend in ("cutile", "cake"):
        yield f"{backend} is not tuned by --autotune: leave it out"


@bmm_bf16.backend("cudnn", "cutlass", "tgv", "cutile", "cake", "auto", api=API, limits=_limits, tunes=True)
def _bmm(p: BmmBf16, _x: BmmBf16Inputs, options: LaunchOptions) -> Built[BmmBf16Inputs]:
    from flashinfer.gemm import bmm_bf16

    out_dtype = TORCH[p.out_dtype]

    def launch(x: BmmBf16Inputs) -> object:
        return bmm_bf16(x.a, x.b.mT, out=x.out, out_dtype=out_dtype, backend=options.backend)

    return Built(launch, options.backend)


_tiers.smoke(
    bmm_bf16,
    BmmBf16(batch_size=3, m=16, n=256, k=256),
    {"m": 1},
    {"n": 208, "k": 272},
    {"out_dtype": "float16"},
    {"out_dtype": "float32"},
    {"autotune": True},
)
_tiers.of_batches(bmm_bf16, {"out_dtype": "float16"}, {"autotune": True})
