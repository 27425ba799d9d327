"""bmm_fp8: batched products of FP8 tensors that have one scale each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.gemm import _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._shared import Batched, Fp8Product, Operands
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH
from pytest_flashinfer_perf.spec.params import autotune
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions

API = "gemm.bmm_fp8"


@dataclass(frozen=True)
class BmmFp8(Fp8Product, Batched):
    autotune: bool = autotune()


class BmmFp8Inputs(NamedTuple):
    a: Tensor  # [batch, m, k]
    b: Tensor  # [batch, n, k]: a call gets its transposed view
    a_scale: Tensor
    b_scale: Tensor
    out: Tensor


def inputs(p: BmmFp8, rand: torch.Generator, device: torch.device) -> BmmFp8Inputs:
    a = _narrow.per_tensor(_shared.drawn(rand, p.batch_size, p.m, p.k), TORCH[p.input_dtype])
    b = _narrow.per_tensor(_shared.drawn(rand, p.batch_size, p.n, p.k), TORCH[p.mat2_dtype])
    scales = torch.tensor([a.scale, b.scale], device=device)
    out = torch.empty(p.batch_size, p.m, p.n, dtype=TORCH[p.out_dtype], device=device)
    return BmmFp8Inputs(a.values, b.values, scales[0].clone(), scales[1].clone(), out)


def _operands(_p: BmmFp8, x: BmmFp8Inputs) -> Operands:
    return Operands(x.a, x.b, x.a_scale * x.b_scale)


bmm_fp8 = _shared.routine("bmm_fp8", BmmFp8, inputs, _operands, FP8[0])


def _limits(p: BmmFp8, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.fp8_type_limits(p, backend)
    yield from _shared.fp8_size_limits(p, backend)
    if backend == "cute-dsl" and p.m % 16:
        yield f"cute-dsl needs an m in steps of 16, not {p.m}"
    if backend == "cute-dsl" and p.input_dtype != p.mat2_dtype:
        yield "cute-dsl multiplies tensors of one type"


@bmm_fp8.backend("cublas", "cudnn", "cutlass", "cute-dsl", "auto", api=API, limits=_limits, tunes=True)
def _bmm(p: BmmFp8, _x: BmmFp8Inputs, options: LaunchOptions) -> Built[BmmFp8Inputs]:
    from flashinfer.gemm import bmm_fp8

    half = TORCH[p.out_dtype]

    def launch(x: BmmFp8Inputs) -> object:
        return bmm_fp8(x.a, x.b.mT, x.a_scale, x.b_scale, half, out=x.out, backend=options.backend)

    return Built(launch, options.backend)


_tiers.smoke(
    bmm_fp8,
    BmmFp8(batch_size=3, m=16, n=256, k=512),
    {"m": 1},
    {"n": 208, "k": 272},
    {"out_dtype": "float16"},
    {"input_dtype": "fp8_e5m2"},
    {"mat2_dtype": "fp8_e5m2"},
    {"autotune": True},
)
_tiers.of_batches(bmm_fp8, {"out_dtype": "float16"}, {"autotune": True}, {"m": 256}, {"m": 256, "autotune": True})
