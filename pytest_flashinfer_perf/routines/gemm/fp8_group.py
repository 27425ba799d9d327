"""group_gemm_fp8_nt_groupwise: a product for each group of rows with weights of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.cost import Cost
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.dtypes import TORCH, bytes_of
from pytest_flashinfer_perf.params import Fault, flag
from pytest_flashinfer_perf.routine import Built, How, Routine, Shape
from pytest_flashinfer_perf.routines._offsets import indptr, slices
from pytest_flashinfer_perf.routines.gemm import _groupwise, _shared
from pytest_flashinfer_perf.routines.gemm._groupwise import GroupwiseParams

API = "gemm.group_gemm_fp8_nt_groupwise"
ROWS_STEP = 4  # the kernels want every group to start at a multiple of it


@dataclass(frozen=True)
class Fp8Group(GroupwiseParams):
    """`m` is the rows of each group, or with `ragged` the most that one has; the first is empty then."""

    group_size: int = flag("groups", default=1, letter="g", minimum=1, draw=(1, 2, 5))
    ragged: bool = flag("draw each group's rows, from none to m", default=False, letter="ragged")

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.m % ROWS_STEP:
            yield "m", f"{self.m} is not a multiple of {ROWS_STEP}, which groups of rows are"


class Inputs(NamedTuple):
    a: Tensor  # [rows of all groups, k]
    b: Tensor  # [groups, n, k]
    a_scale: Tensor  # [rows, k / 128], or [k / 128, rows]
    b_scale: Tensor  # [groups, n / 128, k / 128], or [groups, k / 128, n / 128]
    m_indptr: Tensor
    out: Tensor

    @property
    def groups(self) -> list[slice]:
        return slices(self.m_indptr)


def inputs(p: Fp8Group, rand: torch.Generator, device: torch.device) -> Inputs:
    m_indptr = indptr(_rows(p, rand))
    total = int(m_indptr[-1])
    a, a_scale = _groupwise.activations(p, total, rand)
    b, b_scale = _groupwise.weights(p, rand, p.group_size)
    out = torch.empty(total, p.n, dtype=TORCH[p.out_dtype], device=device)
    return Inputs(a, b, a_scale, b_scale, m_indptr, out)


def _rows(p: Fp8Group, rand: torch.Generator) -> Tensor:
    if not p.ragged:
        return torch.full((p.group_size,), p.m, device=rand.device)
    rows = torch.randint(0, p.m // ROWS_STEP + 1, (p.group_size,), device=rand.device, generator=rand) * ROWS_STEP
    rows[0], rows[-1] = (0, p.m) if p.group_size > 1 else (p.m, p.m)
    return rows


def reference(p: Fp8Group, x: Inputs) -> tuple[Tensor]:
    a = _groupwise.meant_activations(p, x.a, x.a_scale)
    by_group = zip(x.groups, x.b, x.b_scale, strict=True)
    products = [_shared.product(a[rows], _groupwise.meant_weights(p, b, scale)) for rows, b, scale in by_group]
    return (torch.cat(products),)


def cost(p: Fp8Group, x: Inputs) -> Cost:
    """Both operands with their scales and the output once each; of the weights those of groups that have rows."""
    rows = x.m_indptr.diff()
    used = int((rows > 0).sum()) / p.group_size
    weights = int(used * (x.b.nbytes + x.b_scale.nbytes))
    around = (x.a, x.a_scale, x.m_indptr, x.out)
    return Cost(2 * x.a.shape[0] * p.n * p.k, weights + sum(t.nbytes for t in around), p.input_dtype)


def footprint(p: Fp8Group) -> int:
    """Operands in fp32, scaled and stored, one at a time; a group's again for the reference; the output, its check."""
    rows, weights = p.group_size * p.m, p.group_size * p.n
    return 13 * max(rows, weights) * p.k + 5 * (rows + weights) * p.k + (bytes_of(p.out_dtype) + 24) * rows * p.n


fp8_group = Routine(
    "group_gemm_fp8_nt_groupwise",
    family="gemm",
    params=Fp8Group,
    inputs=inputs,
    outputs=lambda x: (x.out,),
    reference=reference,
    cost=cost,
    tolerances=lambda p, _backend: (_shared.tolerance(p.out_dtype),),
    footprint=footprint,
    cuda_graph=True,
    aliases={"trtllm": "cutlass"},
)


def _limits(p: Fp8Group, backend: str, _device: Device) -> Iterator[str]:
    yield from _groupwise.limits(p, backend)
    if p.n % 8:
        yield f"{backend} needs an n in steps of 8, not {p.n}"


@fp8_group.backend("cutlass", "cutile", api=API, limits=_limits)
def _gemm(p: Fp8Group, _x: Inputs, how: How) -> Built[Inputs]:
    """The library calls its CUTLASS kernel trtllm."""
    from flashinfer.gemm import group_gemm_fp8_nt_groupwise

    library_name = {"cutlass": "trtllm"}.get(how.backend, how.backend)

    def launch(x: Inputs) -> object:
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

    return Built(launch, how.backend)


@fp8_group.backend("torch")
def _torch(p: Fp8Group, x: Inputs, _how: How) -> Built[Inputs]:
    groups, half = x.groups, TORCH[p.out_dtype]  # on the host before anything is captured

    def launch(x: Inputs) -> object:
        a = _groupwise.meant_activations(p, x.a, x.a_scale).to(half)
        for rows, b, scale in zip(groups, x.b, x.b_scale, strict=True):
            torch.mm(a[rows], _groupwise.meant_weights(p, b, scale).to(half).transpose(0, 1), out=x.out[rows])
        return x.out

    return Built(launch, "torch")


SMOKE = Fp8Group(group_size=3, m=16, n=256, k=256)


@fp8_group.tier("smoke")
def _smoke() -> Iterator[Shape[Fp8Group]]:
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"scale_major_mode": "K"},
        {"out_dtype": "float16"},
        {"n": 200},
        {"ragged": True},
        {"ragged": True, "scale_major_mode": "K"},
        {"group_size": 1, "m": 128},
    )
    yield from (Shape(replace(SMOKE, **change)) for change in changes)


@fp8_group.tier("default")
def _default() -> Iterator[Shape[Fp8Group]]:
    """DeepSeek-V3's experts on one of 8, 32 and 256 GPUs: gate and up, then down; equal and ragged."""
    for groups, m in ((32, 64), (8, 256), (1, 4096)):
        for n, k in ((4096, 7168), (7168, 2048)):
            yield Shape(Fp8Group(group_size=groups, m=m, n=n, k=k))
            yield Shape(Fp8Group(group_size=groups, m=m, n=n, k=k, ragged=True))


@fp8_group.tier("full")
def _full() -> Iterator[Shape[Fp8Group]]:
    for groups in (1, 4, 8, 32, 64):
        for m in (4, 16, 64, 256, 1024):
            for n, k in ((4096, 7168), (7168, 2048)):
                for mode in ("MN", "K"):
                    shape = Fp8Group(group_size=groups, m=m, n=n, k=k, scale_major_mode=mode)
                    yield from (Shape(replace(shape, ragged=ragged)) for ragged in (False, True))
