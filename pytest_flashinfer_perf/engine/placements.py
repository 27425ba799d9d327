"""Placements: the same call with all its memory at other addresses, each timed separately."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.engine.clocks import Clocks
from pytest_flashinfer_perf.engine.cold import MEMORY_SHARE
from pytest_flashinfer_perf.engine.copies import in_memory, storage
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.rows import scatter


@dataclass(frozen=True)
class PlacedSamples:
    """Durations in seconds, the part of each in which a kernel ran, SM cycles, and where each tensor's memory is.

    `busy` is empty where that is not known of each call.
    """

    samples: tuple[float, ...]
    busy: tuple[float, ...] = ()
    clocks: Clocks | None = None
    addresses: tuple[int, ...] = ()

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def precision_samples(self) -> tuple[float, ...]:
        """The times that are to be precise: those of kernels where known, since gaps always scatter."""
        return self.busy or self.samples

    @property
    def busy_median(self) -> float | None:
        return statistics.median(self.busy) if self.busy else None

    @property
    def cycles(self) -> float | None:
        return self.clocks.median_cycles if self.clocks else None


def spread(placements: Sequence[PlacedSamples]) -> float | None:
    """The standard deviation of the medians relative to their mean; None for a single placement."""
    return scatter.spread([placement.median for placement in placements])


def fits(target: Target, free_at_first: int, free: int, count: int) -> bool:
    """Whether there is memory for one more placement: as much as each so far took, and at least for its tensors."""
    storages = {storage(t): t.untyped_storage().nbytes() for t in in_memory(_touched(target))}
    taken = (free_at_first - free) // count if count else 0
    return max(taken, sum(storages.values())) <= MEMORY_SHARE * free


def addresses(target: Target) -> tuple[int, ...]:
    """The addresses of arguments, outputs, and tensors that the function holds, such as a wrapper's workspace."""
    return tuple(dict.fromkeys(map(storage, in_memory(_touched(target)))))


def _touched(target: Target) -> tuple[Any, ...]:
    return (target.args, dict(target.kwargs), target.outputs, *_closure(target.function))


def _closure(function: Callable[..., object]) -> Iterator[Any]:
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # of a variable that has no value yet
            yield cell.cell_contents
            yield getattr(cell.cell_contents, "__dict__", None)
