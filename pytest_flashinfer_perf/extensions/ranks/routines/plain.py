"""all_gather, reduce_scatter and all_to_all of torch.distributed: NCCL's, the yardstick of the routines beside them.

The message is the whole one, as nccl-tests counts it: what all ranks gather, or what each rank gives to reduce and
scatter, or to exchange.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_flashinfer_perf.api import check
from pytest_flashinfer_perf.extensions.ranks.routines import _shared
from pytest_flashinfer_perf.extensions.ranks.routines._shared import Between, RoutineOfRanks
from pytest_flashinfer_perf.spec.params import Fault
from pytest_flashinfer_perf.spec.routine import Built, Cost, LaunchOptions, Reference, Shape

Operation = Callable[[Tensor, Tensor], object]
Rows = Callable[["PlainParams"], tuple[int, int]]  # how many a rank gives and gets


@dataclass(frozen=True)
class PlainParams(Between):
    def faults(self) -> Iterator[Fault]:
        if self.num_tokens % self.num_gpus:
            yield "num_tokens", f"{self.num_tokens} rows cannot be divided among {self.num_gpus} ranks"

    @property
    def part(self) -> int:
        return self.num_tokens // self.num_gpus


class PlainInputs(NamedTuple):
    of_all: Tensor  # [ranks, rows that each gives, hidden]
    input: Tensor  # [rows that this rank gives, hidden]
    out: Tensor  # [rows that it gets, hidden]


def _gathered(_p: PlainParams, x: PlainInputs, _rows: Tensor | None = None) -> tuple[Tensor, ...]:
    return (x.of_all.flatten(0, 1).float(),)


def _scattered(p: PlainParams, x: PlainInputs, _rows: Tensor | None = None) -> tuple[Tensor, ...]:
    return (x.of_all.float().sum(0).split(p.part)[_shared.rank()],)


def _exchanged(p: PlainParams, x: PlainInputs, _rows: Tensor | None = None) -> tuple[Tensor, ...]:
    """From each rank the part that it has for this one."""
    return (x.of_all.unflatten(1, (p.num_gpus, p.part))[:, _shared.rank()].flatten(0, 1).float(),)


def _routine(
    name: str,
    operation: Operation,
    reference: Reference[PlainParams, PlainInputs],
    rows: Rows,
    tolerance: Callable[[PlainParams], check.Tolerance] = lambda _: check.EXACT,
) -> RoutineOfRanks[PlainParams, PlainInputs]:
    made: RoutineOfRanks[PlainParams, PlainInputs] = RoutineOfRanks(
        name=name,
        family="comm",
        params=PlainParams,
        inputs=functools.partial(_inputs, rows),
        outputs=lambda x: (x.out,),
        reference=reference,
        cost=lambda p, x: Cost(0.0, p.elements * x.input.itemsize, "float32"),
        tolerances=lambda p, _backend: (tolerance(p),),
        footprint=lambda p: p.elements * (8 * p.num_gpus + 8),
        cuda_graph=False,
        activations=_shared.own_or_all,
        collective=name,
    )
    build = functools.partial(_built, operation)
    made.backend("torch")(build)
    made.backend("nccl", limits=_shared.on_gpus)(build)
    made.tier("smoke")(lambda: [Shape(PlainParams(num_tokens=16, hidden_size=512))])
    made.tier("default")(lambda: [Shape(PlainParams(num_tokens=t, hidden_size=8192)) for t in (16, 1024, 4096)])
    made.tier("full")(lambda: [Shape(PlainParams(num_tokens=2**n, hidden_size=8192)) for n in range(1, 14)])
    return made


def _inputs(rows: Rows, p: PlainParams, rand: torch.Generator, device: torch.device) -> PlainInputs:
    gives, gets = rows(p)
    everybodys = _shared.of_all(p, rand, device, gives)
    return PlainInputs(everybodys, everybodys[_shared.rank()], everybodys.new_empty(gets, p.hidden_size))


def _built(operation: Operation, p: PlainParams, x: PlainInputs, options: LaunchOptions) -> Built[PlainInputs]:
    _shared.group(p)
    return _shared.built(lambda x: operation(x.out, x.input), x, options)


all_gather = _routine("all_gather", dist.all_gather_into_tensor, _gathered, lambda p: (p.part, p.num_tokens))
reduce_scatter = _routine(
    "reduce_scatter", dist.reduce_scatter_tensor, _scattered, lambda p: (p.num_tokens, p.part), _shared.of_sums
)
all_to_all = _routine("all_to_all", dist.all_to_all_single, _exchanged, lambda p: (p.num_tokens, p.num_tokens))
