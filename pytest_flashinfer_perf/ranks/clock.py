"""When each rank arrived at a call and when it ended, and whether their clocks may be subtracted.

A collective that needs all ranks ends nowhere before its last rank has arrived. So for ranks i and j with clocks that
are d apart, every such call says d <= end(i) - arrival(j): many of them bound d from both sides, whatever the network
does. Zero between the bounds is one clock; the wider bound is how far apart the clocks may still be.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spans:
    """Of each rank, the nanoseconds at which it arrived at and ended each call."""

    arrivals: tuple[tuple[int, ...], ...]
    ends: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, ranks: Sequence[Sequence[tuple[int, int]]]) -> Spans:
        """From the arrival and the end of each call, rank by rank."""
        arrivals = tuple(tuple(arrival for arrival, _ in calls) for calls in ranks)
        return cls(arrivals, tuple(tuple(end for _, end in calls) for calls in ranks))

    def __add__(self, other: Spans) -> Spans:
        arrivals = (one + more for one, more in zip(self.arrivals, other.arrivals, strict=True))
        ends = (one + more for one, more in zip(self.ends, other.ends, strict=True))
        return Spans(tuple(arrivals), tuple(ends))

    @property
    def last_to_last(self) -> list[float]:
        """The seconds of each call from the last arrival to the last end: how late a rank came is not in them."""
        calls = zip(zip(*self.arrivals, strict=True), zip(*self.ends, strict=True), strict=True)
        return [(max(ends) - max(arrivals)) / 1e9 for arrivals, ends in calls]

    @property
    def longest(self) -> list[float]:
        """The seconds of each call on the rank that it took longest on, by its own clock; they contain lateness."""
        own = (
            [end - arrival for arrival, end in zip(*rank, strict=True)]
            for rank in zip(self.arrivals, self.ends, strict=True)
        )
        return [max(call) / 1e9 for call in zip(*own, strict=True)]

    @property
    def skew(self) -> float:
        """The seconds between the first and the last arrival, in the median."""
        return _apart(self.arrivals)

    @property
    def end_skew(self) -> float:
        """The seconds between the first and the last end, in the median."""
        return _apart(self.ends)

    @property
    def violations(self) -> int:
        """The calls that ended on some rank before the last one had arrived."""
        calls = zip(zip(*self.arrivals, strict=True), zip(*self.ends, strict=True), strict=True)
        return sum(min(ends) < max(arrivals) for arrivals, ends in calls)

    @property
    def bound_ns(self) -> int:
        """How far apart two of the clocks may be at most, if they are not proved to differ."""
        pairs = itertools.permutations(range(len(self.ends)), 2)
        return max((min(self._after(i, j)) for i, j in pairs), default=0)

    def _after(self, i: int, j: int) -> list[int]:
        return [end - arrival for end, arrival in zip(self.ends[i], self.arrivals[j], strict=True)]

    @property
    def each_from_the_first_arrival(self) -> Spans:
        first = [min(arrivals) for arrivals in zip(*self.arrivals, strict=True)]
        return self._since([first] * len(self.arrivals))

    @property
    def each_from_its_own_start(self) -> Spans:
        """Where clocks differ there is nothing else that a rank's times can be counted from."""
        return self._since(self.arrivals)

    def _since(self, zeros: Sequence[Sequence[int]]) -> Spans:
        arrivals, ends = (
            tuple(
                tuple(at - zero for at, zero in zip(times, zero_of_rank, strict=True))
                for times, zero_of_rank in zip(ranks, zeros, strict=True)
            )
            for ranks in (self.arrivals, self.ends)
        )
        return Spans(arrivals, ends)


def _apart(times: Sequence[Sequence[int]]) -> float:
    return float(statistics.median(max(call) - min(call) for call in zip(*times, strict=True))) / 1e9
