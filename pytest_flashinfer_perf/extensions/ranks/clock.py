"""When each rank arrived at a call and when it ended, and the figures that follow from it."""

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
        """Make spans of the arrival and the end of each call, rank by rank."""
        times = torch.tensor(ranks, dtype=torch.int64, device="cpu")
        return cls(times[..., 0], times[..., 1])

    @classmethod
    def joined(cls, placements: Sequence[Spans]) -> Spans:
        return cls(torch.cat([one.arrivals for one in placements], 1), torch.cat([one.ends for one in placements], 1))

    @property
    def aligned(self) -> Spans:
        """Less how far each clock has drifted from the first one, as ranks arrive together in the median."""
        offsets = (self.arrivals - self.arrivals[0]).median(-1, keepdim=True).values
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


def seconds(nanoseconds: Tensor) -> list[float]:
    return [one / 1e9 for one in nanoseconds.tolist()]
