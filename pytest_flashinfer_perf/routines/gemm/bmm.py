"""bmm_bf16 and bmm_fp8: batched products, in bfloat16 or of FP8 tensors that have one scale each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.gemm import _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._shared import Batched, Fp8Product, Operands, Product
from pytest_flashinfer_perf.spec import Built, LaunchOptions, autotune
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH

CAKE_K = (64, 256, 1024)


@dataclass(frozen=True)
class BmmBf16(Product, Batched):
    out_dtype: str = _shared.out_dtype_or_float32()
    autotune: bool = autotune()


class BmmBf16Inputs(NamedTuple):
    a: Tensor  # [batch, m, k]
    b: Tensor  # [batch, n, k]: a call gets its transposed view
    out: Tensor


def _bf16_inputs(p: BmmBf16, rand: torch.Generator, device: torch.device) -> BmmBf16Inputs:
    a, b = (_shared.drawn(rand, p.batch_size, rows, p.k).bfloat16() for rows in (p.m, p.n))
    return BmmBf16Inputs(a, b, torch.empty(p.batch_size, p.m, p.n, dtype=TORCH[p.out_dtype], device=device))


bmm_bf16 = _shared.routine("bmm_bf16", BmmBf16, _bf16_inputs, lambda _p, x: Operands(x.a, x.b), "bfloat16")


def _bf16_limits(p: BmmBf16, backend: str, device: Device) -> Iterator[str]:
    if backend == "tgv" and p.out_dtype != "bfloat16":
        yield "tgv writes bfloat16 only: use cudnn"
    if backend == "cake" and (p.n % 8 or p.k not in CAKE_K):
        yield f"cake needs an n in multiples of 8 and a k of {', '.join(map(str, CAKE_K))}, not {p.n} and {p.k}"
    yield from _shared.auto_limits(backend, device)
    if p.autotune and backend in ("cutile", "cake"):
        yield f"{backend} is not tuned by --autotune: leave it out"


BF16_BACKENDS = ("cudnn", "cutlass", "tgv", "cutile", "cake", "auto")


@bmm_bf16.backend(*BF16_BACKENDS, api="gemm.bmm_bf16", limits=_bf16_limits, tunes=True)
def _bf16(p: BmmBf16, _x: BmmBf16Inputs, options: LaunchOptions) -> Built[BmmBf16Inputs]:
    from flashinfer.gemm import bmm_bf16

    keywords = {"out_dtype": TORCH[p.out_dtype], "backend": options.backend}
    return Built(lambda x: bmm_bf16(x.a, x.b.mT, out=x.out, **keywords), options.backend)


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


@dataclass(frozen=True)
class BmmFp8(Fp8Product, Batched):
    autotune: bool = autotune()


class BmmFp8Inputs(NamedTuple):
    a: Tensor  # [batch, m, k]
    b: Tensor  # [batch, n, k]: a call gets its transposed view
    a_scale: Tensor
    b_scale: Tensor
    out: Tensor


def _fp8_inputs(p: BmmFp8, rand: torch.Generator, device: torch.device) -> BmmFp8Inputs:
    a = _narrow.per_tensor(_shared.drawn(rand, p.batch_size, p.m, p.k), TORCH[p.input_dtype])
    b = _narrow.per_tensor(_shared.drawn(rand, p.batch_size, p.n, p.k), TORCH[p.mat2_dtype])
    a_scale, b_scale = (torch.tensor(scale, device=device) for scale in (a.scale, b.scale))
    out = torch.empty(p.batch_size, p.m, p.n, dtype=TORCH[p.out_dtype], device=device)
    return BmmFp8Inputs(a.values, b.values, a_scale, b_scale, out)


bmm_fp8 = _shared.routine(
    "bmm_fp8", BmmFp8, _fp8_inputs, lambda _p, x: Operands(x.a, x.b, x.a_scale * x.b_scale), FP8[0]
)


def _fp8_limits(p: BmmFp8, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.fp8_type_limits(p, backend)
    yield from _shared.fp8_size_limits(p, backend)
    if backend == "cute-dsl" and p.m % 16:
        yield f"cute-dsl needs an m in multiples of 16, not {p.m}"
    if backend == "cute-dsl" and p.input_dtype != p.mat2_dtype:
        yield "cute-dsl multiplies tensors of one type"


FP8_BACKENDS = ("cublas", "cudnn", "cutlass", "cute-dsl", "auto")


@bmm_fp8.backend(*FP8_BACKENDS, api="gemm.bmm_fp8", limits=_fp8_limits, tunes=True)
def _fp8(p: BmmFp8, _x: BmmFp8Inputs, options: LaunchOptions) -> Built[BmmFp8Inputs]:
    from flashinfer.gemm import bmm_fp8

    keywords = {"dtype": TORCH[p.out_dtype], "backend": options.backend}
    return Built(lambda x: bmm_fp8(x.a, x.b.mT, x.a_scale, x.b_scale, out=x.out, **keywords), options.backend)


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
