"""Placements: the same call again with everything that it touches at other addresses, each timed for itself."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.timing.clocks import Clocks
from pytest_flashinfer_perf.timing.cold import MEMORY_SHARE
from pytest_flashinfer_perf.timing.target import Target


@dataclass(frozen=True)
class Placement:
    """Durations in seconds, SM cycles where they were counted, and where the memory of each tensor begins."""

    samples: tuple[float, ...]
    clocks: Clocks | None = None
    addresses: tuple[int, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def cycles(self) -> float | None:
        return self.clocks.median_cycles if self.clocks else None


def spread(placements: Sequence[Placement]) -> float | None:
    """How far they lie apart, relative to their mean; None of a single one, which says nothing of it."""
    medians = [placement.median for placement in placements]
    return statistics.stdev(medians) / statistics.fmean(medians) if len(medians) > 1 else None


def fits(target: Target, free_at_first: int, free: int, placed: int) -> bool:
    """Whether there is memory for one more: as much as those took that are kept, at least as much as its tensors."""
    storages = {_begin(t): t.untyped_storage().nbytes() for t in tensors(_touched(target))}
    taken = (free_at_first - free) // placed if placed else 0
    return max(taken, sum(storages.values())) <= MEMORY_SHARE * free


def addresses(target: Target) -> tuple[int, ...]:
    """Of what it is given and writes, and of what its function holds: a wrapper's workspace, its plan's buffers."""
    return tuple(dict.fromkeys(_begin(tensor) for tensor in tensors(_touched(target)) if tensor.numel()))


def _touched(target: Target) -> tuple[Any, ...]:
    return (target.args, dict(target.kwargs), target.outputs, *_held(target.function))


def _held(function: Callable[..., object]) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        held = cell.cell_contents
        yield held
        yield getattr(held, "__dict__", None)


def _begin(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())
