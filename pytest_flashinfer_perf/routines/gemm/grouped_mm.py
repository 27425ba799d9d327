"""grouped_mm_bf16 and grouped_mm_fp8: products for groups of rows, each with weights of its own.

The operands are in bfloat16, or in FP8 with one scale for each tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.gemm import _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._shared import Fp8Product, GroupedParams, Operands
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions

CUDNN = 92100  # the first with these products


def _limits(_p: GroupedParams, _backend: str, _device: Device) -> Iterator[str]:
    version = torch.backends.cudnn.version() or 0
    if version < CUDNN:
        yield f"cuDNN has grouped products from {CUDNN} on, this is {version}: pip install -U nvidia-cudnn-cu13"


@dataclass(frozen=True)
class GroupedMmBf16(GroupedParams):
    out_dtype: str = _shared.out_dtype_or_float32()


class GroupedMmBf16Inputs(NamedTuple):
    a: Tensor  # [rows of all groups, k]
    b: Tensor  # [groups, n, k]
    m_indptr: Tensor
    out: Tensor

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (self.b,)


def _bf16_inputs(p: GroupedMmBf16, rand: torch.Generator, device: torch.device) -> GroupedMmBf16Inputs:
    m_indptr = _shared.starts(p, rand)
    total = int(m_indptr[-1])
    a, b = _shared.drawn(rand, total, p.k).bfloat16(), _shared.drawn(rand, p.group_size, p.n, p.k).bfloat16()
    return GroupedMmBf16Inputs(a, b, m_indptr, torch.empty(total, p.n, dtype=TORCH[p.out_dtype], device=device))


grouped_mm_bf16 = _shared.grouped_routine(
    "grouped_mm_bf16", GroupedMmBf16, _bf16_inputs, lambda _p, x: Operands(x.a, x.b), "bfloat16"
)


@grouped_mm_bf16.backend("cudnn", api="grouped_mm.grouped_mm_bf16", limits=_limits)
def _bf16(_p: GroupedMmBf16, _x: GroupedMmBf16Inputs, options: LaunchOptions) -> Built[GroupedMmBf16Inputs]:
    from flashinfer.grouped_mm import grouped_mm_bf16

    return Built(lambda x: grouped_mm_bf16(x.a, x.b, x.m_indptr, out=x.out, backend=options.backend), options.backend)


@dataclass(frozen=True)
class GroupedMmFp8(Fp8Product, GroupedParams):
    out_dtype: str = _shared.out_dtype_or_float32()


class GroupedMmFp8Inputs(NamedTuple):
    a: Tensor  # [rows of all groups, k]
    b: Tensor  # [groups, n, k]
    m_indptr: Tensor
    alpha: Tensor  # [1], the product of both scales
    out: Tensor

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return (self.b,)


def _fp8_inputs(p: GroupedMmFp8, rand: torch.Generator, device: torch.device) -> GroupedMmFp8Inputs:
    m_indptr = _shared.starts(p, rand)
    total = int(m_indptr[-1])
    a = _narrow.per_tensor(_shared.drawn(rand, total, p.k), TORCH[p.input_dtype])
    b = _narrow.per_tensor(_shared.drawn(rand, p.group_size, p.n, p.k), TORCH[p.mat2_dtype])
    alpha = torch.tensor([a.scale * b.scale], device=device)
    out = torch.empty(total, p.n, dtype=TORCH[p.out_dtype], device=device)
    return GroupedMmFp8Inputs(a.values, b.values, m_indptr, alpha, out)


grouped_mm_fp8 = _shared.grouped_routine(
    "grouped_mm_fp8", GroupedMmFp8, _fp8_inputs, lambda _p, x: Operands(x.a, x.b, x.alpha), FP8[0]
)


@grouped_mm_fp8.backend("cudnn", api="grouped_mm.grouped_mm_fp8", limits=_limits)
def _fp8(_p: GroupedMmFp8, _x: GroupedMmFp8Inputs, options: LaunchOptions) -> Built[GroupedMmFp8Inputs]:
    from flashinfer.grouped_mm import grouped_mm_fp8

    return Built(
        lambda x: grouped_mm_fp8(x.a, x.b, x.m_indptr, x.alpha, out=x.out, backend=options.backend), options.backend
    )


BOTH = ({"out_dtype": "float16"}, {"out_dtype": "float32"}, {"n": 208}, {"ragged": True})
ONE_GROUP = {"group_size": 1, "m": 128}
_tiers.smoke(grouped_mm_bf16, GroupedMmBf16(group_size=3, m=16, n=256, k=256), *BOTH, ONE_GROUP)
_tiers.of_experts(grouped_mm_bf16)
_tiers.smoke(
    grouped_mm_fp8, GroupedMmFp8(group_size=3, m=16, n=256, k=256), *BOTH, {"mat2_dtype": "fp8_e5m2"}, ONE_GROUP
)
_tiers.of_experts(grouped_mm_fp8)
