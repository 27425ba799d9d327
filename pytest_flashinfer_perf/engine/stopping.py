"""Decide the number of calls and placements: as requested, until the time is precise, or until time is up.

A placement is one arrangement of a call's data in memory. Samples of one agree with each other, but not with those of
the next, so the precision of a time is that over several placements.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_flashinfer_perf.settings.settings import Measuring

WARMUP = 2
PLACEMENTS, MOST_PLACEMENTS = 5, 30
ENOUGH_TO_GIVE_UP = 10  # placements, to estimate their scatter
CALLS = 10  # timed calls of a placement
FEWEST = PLACEMENTS * CALLS
PRECISION = {"wall": 0.02}  # the error that a time may have, FINE for a GPU's instruments
FINE = 0.003
TICK_S = 16e-9  # CUPTI's clock ticks in 32 ns
WALL_FACTOR = 10  # wall time of a case, in units of the time for timed calls
CALLS_SHARE, WARMUP_SHARE = 0.8, 0.02  # shares of the wall time; the rest is for making placements
OUT_OF_TIME = "wall time"


class CaseClock:
    """The seconds since a case began, without those for which it was halted: what is compiled or tuned is done once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._begun, self._halted = now, now(), 0.0

    @property
    def seconds(self) -> float:
        return self._now() - self._begun - self._halted

    @contextmanager
    def halted(self) -> Iterator[None]:
        since = self._now()
        try:
            yield
        finally:
            self._halted += self._now() - since


@dataclass(frozen=True)
class TimeBudget:
    """The wall time for the placements of one case."""

    seconds: float
    clock: Callable[[], float]
    start: float

    @property
    def spent(self) -> float:
        return self.clock() - self.start


def budget(how: Measuring, clock: Callable[[], float], spent: float = 0.0) -> TimeBudget:
    """What a case has left after `spent` seconds of inputs and checks: at least the time of its timed calls."""
    left = WALL_FACTOR * how.max_time - spent
    return TimeBudget(max(how.max_time, left), clock, clock())


def makes_trial(how: Measuring) -> bool:
    """Whether an untimed call is made first, to see how long it takes; not with --perf-warmup=0."""
    return how.warmup != 0


def fitting(most: int, seconds_per_call: float, seconds: float = 1.0) -> int:
    """The number of calls of this length that fit into the time, at least one; a coarse clock may show no length."""
    return max(1, min(most, math.floor(seconds / seconds_per_call))) if seconds_per_call > 0 else most


def error(medians: Sequence[float]) -> float:
    """The standard error of the mean of these medians; infinite for a single one."""
    return statistics.stdev(medians) / math.sqrt(len(medians)) if len(medians) > 1 else math.inf


@dataclass(frozen=True)
class Sampling:
    """The caller's own placement comes last."""

    how: Measuring
    instrument: str
    seconds_per_call: float
    budget: TimeBudget

    def warmup(self, calls: int, placements: int, *, last: bool = False) -> int:
        """The untimed calls of the next placement, after so many in so many placements; those asked for are shared.

        A kernel may take several calls to settle at new addresses (`trtllm-native` 41, 28, 27, 26 us, in
        evidence/parity-h200-0.6.18.md), so that no placement goes without where there are enough.
        """
        if self.how.warmup is not None:
            places = len(self.shares)
            by_then = self.how.warmup if last else -(-self.how.warmup * min(placements + 1, places) // places)
            return max(0, by_then - calls)
        return min(WARMUP, math.floor(WARMUP_SHARE * self.budget.seconds / self.seconds_per_call))

    @property
    def shares(self) -> tuple[int, ...]:
        """The timed calls of each placement, if their total is known from the start."""
        calls = self.how.iters or fitting(FEWEST, self.seconds_per_call, CALLS_SHARE * self.budget.seconds)
        placements = min(PLACEMENTS, calls)
        return tuple(calls // placements + (place < calls % placements) for place in range(placements))

    def next_placement_calls(self, placements: Sequence[Sequence[float]]) -> int:
        """The timed calls of the next placement; 0 if only the last one is left."""
        if len(placements) + 1 < len(self.shares):
            return self.shares[len(placements)] if self._affordable(placements) else 0
        return 0 if self.how.iters or self.stopped(placements) else CALLS

    def last_placement_calls(self, placements: Sequence[Sequence[float]]) -> int:
        """The timed calls of the caller's own placement: with --perf-iters all that are left of them."""
        return self.how.iters - sum(map(len, placements)) if self.how.iters else self.shares[-1]

    def stopped(self, placements: Sequence[Sequence[float]]) -> str:
        """The reason to stop; empty to go on."""
        if self.how.iters:
            return "asked"
        if self._is_precise(placements):
            return "precise"
        if sum(map(math.fsum, placements)) >= self.how.max_time:
            return "max time"
        if not self._affordable(placements) or len(self.shares) < PLACEMENTS:
            return OUT_OF_TIME
        if self._never_precise(placements):
            return "scatters"
        return "most calls" if len(placements) + 1 >= MOST_PLACEMENTS else ""

    def _is_precise(self, placements: Sequence[Sequence[float]]) -> bool:
        medians = [statistics.median(samples) for samples in placements]
        return len(medians) + 1 >= PLACEMENTS and error(medians) <= self._target_error(medians)

    def _never_precise(self, placements: Sequence[Sequence[float]]) -> bool:
        """Whether placements scatter so much that even the largest number of them would not be precise."""
        medians = [statistics.median(samples) for samples in placements]
        if len(medians) < ENOUGH_TO_GIVE_UP:
            return False
        return error(medians) * math.sqrt(len(medians) / MOST_PLACEMENTS) > self._target_error(medians)

    def _target_error(self, medians: Sequence[float]) -> float:
        """The largest error with which a time counts as precise."""
        return max(PRECISION.get(self.instrument, FINE) * statistics.median(medians), TICK_S)

    def _affordable(self, placements: Sequence[Sequence[float]]) -> bool:
        """Whether there is time for another placement like those before, and for the last one."""
        spent = self.budget.spent
        return not placements or spent + 2 * spent / len(placements) <= self.budget.seconds
