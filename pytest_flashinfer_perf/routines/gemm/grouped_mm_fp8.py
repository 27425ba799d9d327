"""grouped_mm_fp8: products of FP8 tensors with one scale each, for groups of rows with weights of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.gemm import _grouped, _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._grouped import GroupedParams
from pytest_flashinfer_perf.routines.gemm._shared import Fp8Product, Operands
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions

API = "grouped_mm.grouped_mm_fp8"


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


def inputs(p: GroupedMmFp8, rand: torch.Generator, device: torch.device) -> GroupedMmFp8Inputs:
    m_indptr = _grouped.starts(p, rand)
    total = int(m_indptr[-1])
    a = _narrow.per_tensor(_shared.drawn(rand, total, p.k), TORCH[p.input_dtype])
    b = _narrow.per_tensor(_shared.drawn(rand, p.group_size, p.n, p.k), TORCH[p.mat2_dtype])
    alpha = torch.tensor([a.scale * b.scale], device=device)
    return GroupedMmFp8Inputs(
        a.values, b.values, m_indptr, alpha, torch.empty(total, p.n, dtype=TORCH[p.out_dtype], device=device)
    )


grouped_mm_fp8 = _grouped.routine(
    "grouped_mm_fp8", GroupedMmFp8, inputs, lambda _p, x: Operands(x.a, x.b, x.alpha), FP8[0]
)


@grouped_mm_fp8.backend("cudnn", api=API, limits=_grouped.cudnn_limits)
def _cudnn(_p: GroupedMmFp8, _x: GroupedMmFp8Inputs, options: LaunchOptions) -> Built[GroupedMmFp8Inputs]:
    from flashinfer.grouped_mm import grouped_mm_fp8

    return Built(
        lambda x: grouped_mm_fp8(x.a, x.b, x.m_indptr, x.alpha, out=x.out, backend=options.backend), options.backend
    )


_tiers.smoke(
    grouped_mm_fp8,
    GroupedMmFp8(group_size=3, m=16, n=256, k=256),
    {"out_dtype": "float16"},
    {"out_dtype": "float32"},
    {"n": 208},
    {"ragged": True},
    {"mat2_dtype": "fp8_e5m2"},
    {"group_size": 1, "m": 128},
)
_tiers.of_experts(grouped_mm_fp8)
