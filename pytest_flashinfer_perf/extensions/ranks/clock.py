"""When each rank arrived at a call and when it ended, and whether their clocks may be subtracted.

A collective that needs all ranks ends nowhere before its last rank has arrived. So for ranks i and j with clocks that
are d apart, every such call says d <= end(i) - arrival(j): many of them bound d from both sides, whatever the network
does. Zero between the bounds is one clock; the wider bound is how far apart the clocks may still be.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Spans:
    """The nanoseconds at which each rank arrived at and ended each call: whole numbers of [ranks, calls]."""

    arrivals: Tensor
    ends: Tensor

    @classmethod
    def of(cls, ranks: Sequence[Sequence[tuple[int, int]]]) -> Spans:
        """From the arrival and the end of each call, rank by rank."""
        times = torch.tensor(ranks, dtype=torch.int64, device="cpu")
        return cls(times[..., 0], times[..., 1])

    def __add__(self, other: Spans) -> Spans:
        return Spans(torch.cat((self.arrivals, other.arrivals), 1), torch.cat((self.ends, other.ends), 1))

    @property
    def offsets(self) -> Tensor:
        """How far each clock is ahead of the first one in nanoseconds, if ranks arrive together in the median."""
        return (self.arrivals - self.arrivals[0]).median(-1, keepdim=True).values

    def less(self, offsets: Tensor) -> Spans:
        return Spans(self.arrivals - offsets, self.ends - offsets)

    @property
    def last_to_last(self) -> list[float]:
        """The seconds of each call from the last arrival to the last end: how late a rank came is not in them."""
        return seconds(self.ends.amax(0) - self.arrivals.amax(0))

    @property
    def longest(self) -> list[float]:
        """The seconds of each call on the rank that it took longest on, by its own clock; they contain lateness."""
        return seconds((self.ends - self.arrivals).amax(0))

    @property
    def skew(self) -> float:
        """The seconds between the first and the last arrival, in the median."""
        return statistics.median(seconds(self.arrivals.amax(0) - self.arrivals.amin(0)))

    @property
    def end_skew(self) -> float:
        """The seconds between the first and the last end, in the median."""
        return statistics.median(seconds(self.ends.amax(0) - self.ends.amin(0)))

    @property
    def violations(self) -> int:
        """The calls that ended on some rank before the last one had arrived."""
        return int((self.ends.amin(0) < self.arrivals.amax(0)).sum())

    @property
    def bound_ns(self) -> int:
        """How far apart two of the clocks may be at most, if they are not proved to differ."""
        bounds = (self.ends[:, None] - self.arrivals).amin(-1)  # [i, j]
        return int(bounds.fill_diagonal_(0).max())


def seconds(nanoseconds: Tensor) -> list[float]:
    return [one / 1e9 for one in nanoseconds.tolist()]
