"""Products for groups of rows, each group with weights of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines._offsets import edges, indptr, slices
from pytest_flashinfer_perf.routines.gemm import _shared
from pytest_flashinfer_perf.routines.gemm._shared import Operands, Product
from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.spec.params import Fault, Params, flag
from pytest_flashinfer_perf.spec.routine import Built, Cost, LaunchOptions, Routine


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
    made.rows = lambda _p, x: edges(x.m_indptr)
    made.cost = lambda p, x: Cost(2 * x.out.numel() * p.k, _bytes(x), dtype)
    made.footprint = lambda p: _shared.footprint(p, p.group_size)

    def reference(p: P, x: X, rows: Tensor | None = None) -> tuple[Tensor]:
        of_groups = operands(p, x).of_each(slices(x.m_indptr), rows)
        return (torch.cat([of_group.product() for _, of_group in of_groups]),)

    @made.backend("torch")
    def _torch(p: P, x: X, _options: LaunchOptions) -> Built[X]:
        groups = slices(x.m_indptr)  # on the host before anything is captured

        def launch(x: X) -> None:
            for rows, of_group in operands(p, x).of_each(groups):
                _shared.by_torch(x.out[rows], of_group)

        return Built(launch, "torch")

    made.reference = reference
    return made


def _bytes(x: GroupedInputs) -> int:
    """Everything once; of the weights those of groups that have rows."""
    empty = int((x.m_indptr.diff() == 0).sum())
    unused = sum(t[0].nbytes for t in x.weights) * empty
    return sum(t.nbytes for t in tensors(x)) - unused
