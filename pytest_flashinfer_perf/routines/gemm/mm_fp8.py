"""mm_fp8: a product of FP8 tensors that have one scale each, whose product is `alpha`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _declared, _narrow
from pytest_flashinfer_perf.routines.gemm import _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._shared import Fp8Product, Operands
from pytest_flashinfer_perf.spec import Built, LaunchOptions, autotune, flag
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH

API = "gemm.mm_fp8"
PREPARED = "trtllm_low_latency"
BLOCK = 128


@dataclass(frozen=True)
class MmFp8(Fp8Product):
    out_dtype: str = flag("type of the output", default="bfloat16", letter="o", choices=("bfloat16",))
    autotune: bool = autotune()


class MmFp8Inputs(NamedTuple):
    a: Tensor  # [m, k]
    b: Tensor  # [n, k], or as trtllm_low_latency takes it
    alpha: Tensor
    out: Tensor


def inputs(p: MmFp8, rand: torch.Generator, device: torch.device) -> MmFp8Inputs:
    a = _narrow.per_tensor(_shared.drawn(rand, p.m, p.k), TORCH[p.input_dtype])
    b = _narrow.per_tensor(_shared.drawn(rand, p.n, p.k), TORCH[p.mat2_dtype])
    alpha = torch.tensor(a.scale * b.scale, device=device)
    return MmFp8Inputs(a.values, b.values, alpha, torch.empty(p.m, p.n, dtype=TORCH[p.out_dtype], device=device))


mm_fp8 = _shared.routine("mm_fp8", MmFp8, inputs, lambda _p, x: Operands(x.a, x.b, x.alpha), FP8[0])


def _limits(p: MmFp8, backend: str, _device: Device) -> Iterator[str]:
    if not _declared.listed(API, backend):
        yield f"mm_fp8 has no {backend} in this flashinfer: use flashinfer 0.7.2, or bmm_fp8"
    yield from _shared.fp8_type_limits(p, backend)
    if backend == PREPARED and (p.k % BLOCK or p.n % 32):
        yield f"{backend} needs a k in multiples of {BLOCK} and an n in multiples of 32, not {p.k} and {p.n}"
    if backend == "cutedsl_low_latency" and (p.m > 8 or p.k % BLOCK):
        yield f"{backend} needs an m of at most 8 and a k in multiples of {BLOCK}, not {p.m} and {p.k}"
    yield from _shared.fp8_size_limits(p, backend)


BACKENDS = ("cublas", "cudnn", "cutlass", PREPARED, "cutedsl_low_latency", "auto")


@mm_fp8.backend(*BACKENDS, api=API, limits=_limits, tunes=True)
def _mm(_p: MmFp8, x: MmFp8Inputs, options: LaunchOptions) -> Built[MmFp8Inputs]:
    from flashinfer.gemm import mm_fp8

    takes = None
    if options.backend == PREPARED:  # rows shuffled, then blocks of columns [k / 128, n, 128]
        by_block: Tensor = _narrow.shuffled_rows(x.b.view(torch.uint8)).unflatten(1, (-1, BLOCK))
        takes = x._replace(b=by_block.permute(1, 0, 2).contiguous().view(x.b.dtype))

    def launch(x: MmFp8Inputs) -> object:
        return mm_fp8(x.a, x.b, x.alpha, out=x.out, backend=options.backend)

    return Built(launch, options.backend, takes)


_tiers.smoke(
    mm_fp8,
    MmFp8(m=16, n=256, k=512),
    {"m": 1},
    {"n": 208, "k": 272},
    {"input_dtype": "fp8_e5m2"},
    {"mat2_dtype": "fp8_e5m2"},
    {"autotune": True},
)
_tiers.of_models(mm_fp8, {}, {}, {"autotune": True})
