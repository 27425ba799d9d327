"""grouped_mm_bf16: products in bfloat16 for groups of rows, each with weights of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines.gemm import _grouped, _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._grouped import GroupedParams
from pytest_flashinfer_perf.routines.gemm._shared import Operands
from pytest_flashinfer_perf.spec.dtypes import TORCH
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions

API = "grouped_mm.grouped_mm_bf16"


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


def inputs(p: GroupedMmBf16, rand: torch.Generator, device: torch.device) -> GroupedMmBf16Inputs:
    m_indptr = _grouped.starts(p, rand)
    total = int(m_indptr[-1])
    a, b = _shared.drawn(rand, total, p.k).bfloat16(), _shared.drawn(rand, p.group_size, p.n, p.k).bfloat16()
    return GroupedMmBf16Inputs(a, b, m_indptr, torch.empty(total, p.n, dtype=TORCH[p.out_dtype], device=device))


grouped_mm_bf16 = _grouped.routine(
    "grouped_mm_bf16", GroupedMmBf16, inputs, lambda _p, x: Operands(x.a, x.b), "bfloat16"
)


@grouped_mm_bf16.backend("cudnn", api=API, limits=_grouped.cudnn_limits)
def _cudnn(_p: GroupedMmBf16, _x: GroupedMmBf16Inputs, options: LaunchOptions) -> Built[GroupedMmBf16Inputs]:
    from flashinfer.grouped_mm import grouped_mm_bf16

    return Built(lambda x: grouped_mm_bf16(x.a, x.b, x.m_indptr, out=x.out, backend=options.backend), options.backend)


_tiers.smoke(
    grouped_mm_bf16,
    GroupedMmBf16(group_size=3, m=16, n=256, k=256),
    {"out_dtype": "float16"},
    {"out_dtype": "float32"},
    {"n": 208},
    {"ragged": True},
    {"group_size": 1, "m": 128},
)
_tiers.of_experts(grouped_mm_bf16)
