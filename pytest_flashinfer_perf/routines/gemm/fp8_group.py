"""group_gemm_fp8_nt_groupwise: a product for each group of rows with weights of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines.gemm import _grouped, _tiers
from pytest_flashinfer_perf.routines.gemm._grouped import GroupedParams, GroupwiseParams
from pytest_flashinfer_perf.routines.gemm._shared import Operands
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions

API = "gemm.group_gemm_fp8_nt_groupwise"


@dataclass(frozen=True)
class Fp8Group(GroupwiseParams, GroupedParams):
    row_step: ClassVar[int] = 4


class Fp8GroupInputs(NamedTuple):
    a: Tensor  # [rows of all groups, k]
    b: Tensor  # [groups, n, k]
    a_scale: Tensor  # [rows, k / 128], or [k / 128, rows]
    b_scale: Tensor  # [groups, n / 128, k / 128], or [groups, k / 128, n / 128]
    m_indptr: Tensor
    out: Tensor

    @property
    def weights(self) -> tuple[Tensor, ...]:
        return self.b, self.b_scale


def inputs(p: Fp8Group, rand: torch.Generator, device: torch.device) -> Fp8GroupInputs:
    m_indptr = _grouped.starts(p, rand)
    total = int(m_indptr[-1])
    a, a_scale = _grouped.activations(p, total, rand)
    b, b_scale = _grouped.weights(p, rand, p.group_size)
    out = torch.empty(total, p.n, dtype=TORCH[p.out_dtype], device=device)
    return Fp8GroupInputs(a, b, a_scale, b_scale, m_indptr, out)


def _operands(p: Fp8Group, x: Fp8GroupInputs) -> Operands:
    a = _grouped.meant_activations(p, x.a, x.a_scale)
    return Operands(a, _grouped.meant_weights(p, x.b, x.b_scale))


fp8_group = _grouped.routine("group_gemm_fp8_nt_groupwise", Fp8Group, inputs, _operands, FP8[0])
fp8_group.aliases = {"trtllm": "cutlass"}


def _limits(p: Fp8Group, backend: str, _device: Device) -> Iterator[str]:
    yield from _grouped.limits(p, backend)
    if p.n % 8:
        yield f"{backend} needs an n in steps of 8, not {p.n}"


@fp8_group.backend("cutlass", "cutile", api=API, limits=_limits)
def _gemm(p: Fp8Group, _x: Fp8GroupInputs, options: LaunchOptions) -> Built[Fp8GroupInputs]:
    """The library calls its CUTLASS kernel trtllm."""
    from flashinfer.gemm import group_gemm_fp8_nt_groupwise

    library_name = {"cutlass": "trtllm"}.get(options.backend, options.backend)

    def launch(x: Fp8GroupInputs) -> object:
        return group_gemm_fp8_nt_groupwise(
            x.a,
            x.b,
            x.a_scale,
            x.b_scale,
            x.m_indptr,
            scale_major_mode=p.scale_major_mode,
            mma_sm=p.mma_sm,
            out=x.out,
            backend=library_name,
        )

    return Built(launch, options.backend)


_tiers.smoke(
    fp8_group,
    Fp8Group(group_size=3, m=16, n=256, k=256),
    {"scale_major_mode": "K"},
    {"out_dtype": "float16"},
    {"n": 200},
    {"ragged": True},
    {"ragged": True, "scale_major_mode": "K"},
    {"group_size": 1, "m": 128},
)
_tiers.of_experts(fp8_group, {"scale_major_mode": "K"})
