"""Products for groups of rows, each group with weights of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines._offsets import edges, indptr, slices
from pytest_flashinfer_perf.routines.gemm import _shared
from pytest_flashinfer_perf.routines.gemm._shared import Fp8Product, Operands, Product, drawn
from pytest_flashinfer_perf.spec.dtypes import TORCH
from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.spec.params import Fault, Params, flag
from pytest_flashinfer_perf.spec.routine import Built, Cost, LaunchOptions, Routine

CUDNN = 92100  # the first with these products


@dataclass(frozen=True)
class Groups(Params):
    group_size: int = flag("groups", default=1, letter="g", minimum=1, draw=(1, 2, 5), most=16)
    ragged: bool = flag("draw the rows of each group from 0 to m", default=False, letter="ragged")


@dataclass(frozen=True)
class GroupedParams(Product, Groups):
    """`m` is the number of rows of each group. With `ragged` it is the largest one, and the first group is empty."""

    row_step: ClassVar[int] = 1  # groups may start at its multiples

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        return {**super().fitted(drawn), "m": -(-drawn["m"] // cls.row_step) * cls.row_step}

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.m % self.row_step:
            yield "m", f"{self.m} is not a multiple of {self.row_step}, as rows of a group must be"


class GroupedInputs(Protocol):
    """A routine's tensors: rows of all groups, all groups' weights, where each group starts, the output."""

    @property
    def a(self) -> Tensor: ...
    @property
    def weights(self) -> tuple[Tensor, ...]: ...
    @property
    def m_indptr(self) -> Tensor: ...
    @property
    def out(self) -> Tensor: ...


P = TypeVar("P", bound=GroupedParams)
X = TypeVar("X", bound=GroupedInputs)


def starts(p: GroupedParams, rand: torch.Generator) -> Tensor:
    """The first row of each group, and the end of the last one."""
    if not p.ragged:
        return indptr(torch.full((p.group_size,), p.m, device=rand.device))
    rows = torch.randint(0, p.m // p.row_step + 1, (p.group_size,), device=rand.device, generator=rand) * p.row_step
    rows[0], rows[-1] = (0, p.m) if p.group_size > 1 else (p.m, p.m)
    return indptr(rows)


def routine(
    name: str,
    params: type[P],
    inputs: Callable[[P, torch.Generator, torch.device], X],
    operands: Callable[[P, X], Operands],
    dtype: str,
) -> Routine[P, X]:
    """Like a dense routine, with operands of all rows [rows, k] and all weights [groups, n, k]."""
    made = _shared.routine(name, params, inputs, operands, dtype)
    made.reference = partial(_reference, operands)
    made.rows = lambda _p, x: edges(x.m_indptr)
    made.cost = lambda p, x: Cost(2 * x.out.numel() * p.k, _bytes(x), dtype)
    made.footprint = lambda p: _shared.footprint(p, p.group_size)

    @made.backend("torch")
    def _torch(p: P, x: X, _options: LaunchOptions) -> Built[X]:
        groups = slices(x.m_indptr)  # on the host before anything is captured
        return Built(lambda x: _by_torch(x.out, operands(p, x), groups), "torch")

    return made


def cudnn_limits(_p: GroupedParams, _backend: str, _device: Device) -> Iterator[str]:
    version = torch.backends.cudnn.version() or 0
    if version < CUDNN:
        yield f"cuDNN has grouped products from {CUDNN} on, this is {version}: pip install -U nvidia-cudnn-cu13"


def _bytes(x: GroupedInputs) -> int:
    """Everything once; of the weights those of groups that have rows."""
    empty = int((x.m_indptr.diff() == 0).sum())
    unused = sum(t[0].nbytes for t in x.weights) * empty
    return sum(t.nbytes for t in tensors(x)) - unused


def _reference(operands: Callable[[P, X], Operands], p: P, x: X, rows: Tensor | None = None) -> tuple[Tensor]:
    of_groups = operands(p, x).of_each(slices(x.m_indptr), rows)
    return (torch.cat([of_group.product() for _, of_group in of_groups]),)


def _by_torch(out: Tensor, operands: Operands, groups: list[slice]) -> None:
    for rows, of_group in operands.of_each(groups):
        _shared.by_torch(out[rows], of_group)


# FP8 with a scale for each 1x128 of the activations and each 128x128 of the weights: flags, operands, meaning.


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
class GroupwiseParams(Fp8Product, Tiled):
    """The flags of both routines."""


def limits(p: GroupwiseParams, backend: str) -> Iterator[str]:
    if backend == "cutile" and p.scale_major_mode != "K":
        yield "cutile takes K-major scales only: set scale_major_mode to K"


def activations(p: GroupwiseParams, rows: int, rand: torch.Generator) -> tuple[Tensor, Tensor]:
    """Values [rows, k], and their scales in the order asked for."""
    return _in_order(p, _drawn(rand, (rows, p.k), 1, p.input_dtype))


def weights(p: GroupwiseParams, rand: torch.Generator, *groups: int) -> tuple[Tensor, Tensor]:
    """Values [..., n, k], and their scales in the order asked for."""
    return _in_order(p, _drawn(rand, (*groups, p.n, p.k), _narrow.GROUP, p.mat2_dtype))


def _in_order(p: GroupwiseParams, q: _narrow.Groupwise) -> tuple[Tensor, Tensor]:
    return q.values, _narrow.mn_major(q.scales) if p.scale_major_mode == "MN" else q.scales


def _drawn(rand: torch.Generator, shape: tuple[int, ...], tile_rows: int, dtype: str) -> _narrow.Groupwise:
    """Draw tiles of different magnitudes, so that a wrong scale is found."""
    *groups, rows, k = shape
    tiles = (*groups, -(-rows // tile_rows), k // _narrow.GROUP)
    sizes = torch.randint(-2, 3, tiles, device=rand.device, generator=rand).float().exp2()
    by_row = sizes.repeat_interleave(tile_rows, -2)[..., :rows, :]
    values = drawn(rand, *shape) * by_row.repeat_interleave(_narrow.GROUP, -1)[..., :k]
    return _narrow.groupwise(values, tile_rows, TORCH[dtype])


def meant_activations(p: GroupwiseParams, values: Tensor, scales: Tensor) -> Tensor:
    """The values that the kernel multiplies."""
    return _narrow.Groupwise(values, linear(p, scales), 1).dequantised()


def meant_weights(p: GroupwiseParams, values: Tensor, scales: Tensor) -> Tensor:
    return _narrow.Groupwise(values, linear(p, scales), _narrow.GROUP).dequantised()


def linear(p: GroupwiseParams, scales: Tensor) -> Tensor:
    """A view of the scales [..., rows, k / 128], whatever their order."""
    return scales.mT if p.scale_major_mode == "MN" else scales
