"""How many calls a case gets, over how many placements: as many as asked, until its time is known, or time is up.

A placement is one arrangement in memory of everything that a call touches. Samples of one agree with each other and not
with the next, so what is known of a time is what several placements say.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_flashinfer_perf.config.settings import Measuring

WARMUP = 2
PLACEMENTS, MOST_PLACEMENTS = 5, 30
ENOUGH_TO_TELL = 10  # placements, how far apart they lie
CALLS = 10  # timed ones of a placement
FEWEST = PLACEMENTS * CALLS
PRECISION = {"wall": 0.02}  # the error that a time may have; that of an instrument of a GPU is finer
FINE = 0.003
TICK_S = 16e-9  # CUPTI's clock ticks in 32 ns
WALL_FACTOR = 10  # times the seconds that the timed calls themselves may take
CALLS_SHARE, WARMUP_SHARE = 0.8, 0.02  # of that; the rest is for making placements
OUT_OF_TIME = "wall time"


@dataclass
class Budget:
    """The wall time that the calls of one case may take, in however many placements."""

    seconds: float
    clock: Callable[[], float] = time.perf_counter
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.clock() + self.seconds

    @property
    def left(self) -> float:
        return self._end - self.clock()

    @property
    def spent(self) -> float:
        return self.seconds - self.left


def budget(how: Measuring) -> Budget:
    return Budget(WALL_FACTOR * how.max_time)


def needs_trial(how: Measuring) -> bool:
    """A call that shows how long it takes; not where all calls are asked for, and none of them untimed."""
    return how.iters is None or how.warmup != 0


def fitting(most: int, each: float, seconds: float = 1.0) -> int:
    """How many calls of this length there is time for: at least one."""
    return max(1, min(most, math.floor(seconds / each)))


def error(medians: Sequence[float]) -> float:
    """The standard error of a figure that so many placements gave; infinite for one, which says nothing of it."""
    return statistics.stdev(medians) / math.sqrt(len(medians)) if len(medians) > 1 else math.inf


@dataclass(frozen=True)
class Sampling:
    """`each` is what one call takes by the wall clock. The caller's own placement comes last, after all others."""

    how: Measuring
    instrument: str
    each: float
    budget: Budget

    def warmup(self, *, first: bool) -> int:
        """Untimed calls of a placement; one was made before the first, to see how long it takes."""
        if self.how.warmup is not None:
            return max(0, self.how.warmup - 1) if first else 0
        return min(WARMUP, math.floor(WARMUP_SHARE * self.budget.seconds / self.each))

    @property
    def shares(self) -> tuple[int, ...]:
        """The timed calls of each placement, where it is known from the start how many there are in all."""
        calls = self.how.iters or fitting(FEWEST, self.each, CALLS_SHARE * self.budget.seconds)
        placements = min(PLACEMENTS, calls)
        return tuple(calls // placements + (place < calls % placements) for place in range(placements))

    def elsewhere(self, seen: Sequence[Sequence[float]]) -> int:
        """How many timed calls the next placement gets; none where there are enough, and the last one is due."""
        if len(seen) + 1 < len(self.shares):
            return self.shares[len(seen)] if self._affordable(seen) else 0
        return 0 if self.how.iters or self.stopped(seen) else CALLS

    def stopped(self, seen: Sequence[Sequence[float]]) -> str:
        """Why no more are needed; empty where they are."""
        if self.how.iters:
            return "asked"
        if self._known(seen):
            return "precise"
        if sum(map(math.fsum, seen)) >= self.how.max_time:
            return "max time"
        if not self._affordable(seen) or len(self.shares) < PLACEMENTS:
            return OUT_OF_TIME
        if self._hopeless(seen):
            return "scatters"
        return "most calls" if len(seen) + 1 >= MOST_PLACEMENTS else ""

    def _known(self, seen: Sequence[Sequence[float]]) -> bool:
        medians = [statistics.median(samples) for samples in seen]
        return len(medians) + 1 >= PLACEMENTS and error(medians) <= self._wanted(medians)

    def _hopeless(self, seen: Sequence[Sequence[float]]) -> bool:
        """Placements so far apart that even the most of them would not do."""
        medians = [statistics.median(samples) for samples in seen]
        if len(medians) < ENOUGH_TO_TELL:
            return False
        return error(medians) * math.sqrt(len(medians) / MOST_PLACEMENTS) > self._wanted(medians)

    def _wanted(self, medians: Sequence[float]) -> float:
        """The largest error that counts as known."""
        return max(PRECISION.get(self.instrument, FINE) * statistics.median(medians), TICK_S)

    def _affordable(self, seen: Sequence[Sequence[float]]) -> bool:
        """Whether there is time for another as long as those before, and for the last one."""
        return not seen or 2 * self.budget.spent / len(seen) <= self.budget.left
