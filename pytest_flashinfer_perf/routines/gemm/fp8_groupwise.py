"""gemm_fp8_nt_groupwise and group_gemm_fp8_nt_groupwise: FP8 with scales for tiles of the operands.

There is a scale for each 1x128 of the activations and each 128x128 of the weights. The second one multiplies groups of
rows, each by weights of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.gemm import _shared, _tiers
from pytest_flashinfer_perf.routines.gemm._shared import Fp8Product, GroupedParams, Operands, Product
from pytest_flashinfer_perf.spec import Built, Fault, LaunchOptions, flag
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH

SM90 = "fp8_blockscale_gemm_sm90"


@dataclass(frozen=True)
class Tiled(Product):
    """Scales for tiles of the operands."""

    tile_size: int = flag("rows and columns that share a scale", default=_narrow.GROUP, letter="t", minimum=1)
    scale_major_mode: str = flag("order of the scales", default="MN", choices=("MN", "K"))
    mma_sm: int = flag("cutlass: SMs that share a tile, 1 or 2", default=1, letter="sm", minimum=1)

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        return {**super().fitted(drawn), "k": -(-drawn["k"] // _narrow.GROUP) * _narrow.GROUP}

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.tile_size != _narrow.GROUP:
            yield "tile_size", f"the kernels have scales for {_narrow.GROUP} columns, not {self.tile_size}"
        if self.k % _narrow.GROUP:
            yield "k", f"{self.k} is not a multiple of {_narrow.GROUP}"
        if self.mma_sm > 2:
            yield "mma_sm", f"must be 1 or 2, got {self.mma_sm}"


@dataclass(frozen=True)
class Fp8Groupwise(Fp8Product, Tiled):
    """One product, or one of a group: the flags of both routines."""


class Fp8GroupwiseInputs(NamedTuple):
    a: Tensor  # [m, k]
    b: Tensor  # [n, k]
    a_scale: Tensor  # [m, k / 128], or [k / 128, m]
    b_scale: Tensor  # [n / 128, k / 128], or [k / 128, n / 128]
    out: Tensor


def _inputs(p: Fp8Groupwise, rand: torch.Generator, device: torch.device) -> Fp8GroupwiseInputs:
    a, a_scale = _drawn(p, rand, 1, p.input_dtype, p.m, p.k)
    b, b_scale = _drawn(p, rand, _narrow.GROUP, p.mat2_dtype, p.n, p.k)
    return Fp8GroupwiseInputs(a, b, a_scale, b_scale, torch.empty(p.m, p.n, dtype=TORCH[p.out_dtype], device=device))


def _drawn(p: Fp8Groupwise, rand: torch.Generator, tile_rows: int, dtype: str, *shape: int) -> tuple[Tensor, Tensor]:
    """Values, and their scales in the order asked for; tiles differ in magnitude, so that a wrong scale is found."""
    *groups, rows, k = shape
    tiles = (*groups, -(-rows // tile_rows), k // _narrow.GROUP)
    sizes = torch.randint(-2, 3, tiles, device=rand.device, generator=rand).float().exp2()
    by_row = sizes.repeat_interleave(tile_rows, -2)[..., :rows, :]
    values = _shared.drawn(rand, *shape) * by_row.repeat_interleave(_narrow.GROUP, -1)[..., :k]
    q = _narrow.groupwise(values, tile_rows, TORCH[dtype])
    return q.values, _narrow.mn_major(q.scales) if p.scale_major_mode == "MN" else q.scales


def _linear(p: Fp8Groupwise, scales: Tensor) -> Tensor:
    """A view of the scales [..., rows, k / 128], whatever their order."""
    return scales.mT if p.scale_major_mode == "MN" else scales


def _operands(p: Fp8Groupwise, x: Fp8GroupwiseInputs | Fp8GroupInputs) -> Operands:
    a = _narrow.Groupwise(x.a, _linear(p, x.a_scale), 1)
    b = _narrow.Groupwise(x.b, _linear(p, x.b_scale), _narrow.GROUP)
    return Operands(a.dequantised(), b.dequantised())


fp8_groupwise = _shared.routine("gemm_fp8_nt_groupwise", Fp8Groupwise, _inputs, _operands, FP8[0])
CUTILE_ORDER = "cutile takes K-major scales only: set scale_major_mode to K"


def _limits(p: Fp8Groupwise, backend: str, _device: Device) -> Iterator[str]:
    if backend == "cutlass" and p.m % 4:
        yield f"cutlass needs an m in multiples of 4, not {p.m}: pad it"
    if backend == "cutile" and p.scale_major_mode != "K":
        yield CUTILE_ORDER
    if backend == "trtllm" and p.scale_major_mode != "MN":
        yield "trtllm takes MN-major scales only: set scale_major_mode to MN"
    if backend == "trtllm" and p.k < 256:
        yield f"trtllm needs a k of at least 256, not {p.k}: use cutlass"
    if backend == "trtllm" and p.out_dtype != "bfloat16":
        yield "trtllm writes bfloat16 only: use cutlass"


@fp8_groupwise.backend("cutlass", "trtllm", "cutile", api="gemm.gemm_fp8_nt_groupwise", limits=_limits)
def _gemm(p: Fp8Groupwise, _x: Fp8GroupwiseInputs, options: LaunchOptions) -> Built[Fp8GroupwiseInputs]:
    from flashinfer.gemm import gemm_fp8_nt_groupwise

    keywords = {"scale_major_mode": p.scale_major_mode, "mma_sm": p.mma_sm, "backend": options.backend}

    def launch(x: Fp8GroupwiseInputs) -> object:
        return gemm_fp8_nt_groupwise(x.a, x.b, x.a_scale, x.b_scale, out=x.out, **keywords)

    return Built(launch, options.backend)


def _sm90_limits(p: Fp8Groupwise, backend: str, _device: Device) -> Iterator[str]:
    if p.n % 64:
        yield f"{backend} needs an n in multiples of 64, not {p.n}"
    if (p.input_dtype, p.mat2_dtype) != (FP8[0], FP8[0]):
        yield f"{backend} multiplies {FP8[0]} only"
    if p.out_dtype != "bfloat16":
        yield f"{backend} writes bfloat16, whatever type its output has"
    if p.mma_sm != 1:
        yield f"{backend} has no mma_sm to choose: leave it 1"


@fp8_groupwise.backend(SM90, api=f"gemm.{SM90}", limits=_sm90_limits)
def _sm90(p: Fp8Groupwise, x: Fp8GroupwiseInputs, _options: LaunchOptions) -> Built[Fp8GroupwiseInputs]:
    """Hopper's kernel: the activations' scales lie by columns, padded to 16 bytes, the weights' by rows."""
    from flashinfer.gemm import fp8_blockscale_gemm_sm90

    a_scale = _linear(p, x.a_scale)
    columns = torch.nn.functional.pad(a_scale.mT, (0, -p.m % 4)).contiguous()
    takes = x._replace(a_scale=columns, b_scale=_linear(p, x.b_scale).contiguous())

    def launch(x: Fp8GroupwiseInputs) -> object:
        return fp8_blockscale_gemm_sm90(x.a, x.b, x.a_scale.mT[: p.m], x.b_scale, out=x.out)

    return Built(launch, SM90, takes)


_tiers.smoke(
    fp8_groupwise,
    Fp8Groupwise(m=16, n=256, k=512),
    {"scale_major_mode": "K"},
    {"out_dtype": "float16"},
    {"n": 200},
    {"m": 1, "k": 128},
    {"m": 130},
    {"mma_sm": 2},
)
_tiers.of_models(fp8_groupwise, {}, {"scale_major_mode": "K"})


@dataclass(frozen=True)
class Fp8Group(Fp8Groupwise, GroupedParams):
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


def _group_inputs(p: Fp8Group, rand: torch.Generator, device: torch.device) -> Fp8GroupInputs:
    m_indptr = _shared.starts(p, rand)
    total = int(m_indptr[-1])
    a, a_scale = _drawn(p, rand, 1, p.input_dtype, total, p.k)
    b, b_scale = _drawn(p, rand, _narrow.GROUP, p.mat2_dtype, p.group_size, p.n, p.k)
    out = torch.empty(total, p.n, dtype=TORCH[p.out_dtype], device=device)
    return Fp8GroupInputs(a, b, a_scale, b_scale, m_indptr, out)


fp8_group = _shared.grouped_routine("group_gemm_fp8_nt_groupwise", Fp8Group, _group_inputs, _operands, FP8[0])
fp8_group.aliases = {"trtllm": "cutlass"}


def _group_limits(p: Fp8Group, backend: str, _device: Device) -> Iterator[str]:
    if backend == "cutile" and p.scale_major_mode != "K":
        yield CUTILE_ORDER
    if p.n % 8:
        yield f"{backend} needs an n in multiples of 8, not {p.n}"


@fp8_group.backend("cutlass", "cutile", api="gemm.group_gemm_fp8_nt_groupwise", limits=_group_limits)
def _group_gemm(p: Fp8Group, _x: Fp8GroupInputs, options: LaunchOptions) -> Built[Fp8GroupInputs]:
    """The library calls its CUTLASS kernel trtllm."""
    from flashinfer.gemm import group_gemm_fp8_nt_groupwise

    library_name = {"cutlass": "trtllm"}.get(options.backend, options.backend)
    keywords = {"scale_major_mode": p.scale_major_mode, "mma_sm": p.mma_sm, "backend": library_name}

    def launch(x: Fp8GroupInputs) -> object:
        return group_gemm_fp8_nt_groupwise(x.a, x.b, x.a_scale, x.b_scale, x.m_indptr, out=x.out, **keywords)

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
