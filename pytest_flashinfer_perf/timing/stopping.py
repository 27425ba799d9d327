"""How many calls a case gets: exactly as many as asked, or until the mean is known well enough, or until time is up."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pytest_flashinfer_perf.settings import Measuring

WARMUP = 5
FEWEST = 30
MOST = 300
PRECISION = 0.005
WALL_FACTOR = 10  # times the seconds that the calls themselves may take
WARMUP_SHARE = 0.1
OUT_OF_TIME = "wall time"

Batch = Callable[[int, int], Sequence[float]]


@dataclass(frozen=True)
class Sampled:
    """Durations in seconds, how many untimed calls were made before them, and which rule ended the sampling."""

    samples: tuple[float, ...]
    warmups: int
    stopped: str


@dataclass
class Budget:
    """The wall time that the calls of one case may take, in however many batches."""

    seconds: float
    clock: Callable[[], float] = time.perf_counter
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.clock() + self.seconds

    @property
    def left(self) -> float:
        return self._end - self.clock()


def budget(how: Measuring) -> Budget:
    return Budget(WALL_FACTOR * how.max_time)


def fitting(most: int, each: float, seconds: float = 1.0) -> int:
    """How many calls of this length there is time for: at least one."""
    return max(1, min(most, math.floor(seconds / each)))


def most_calls(how: Measuring) -> int:
    return (WARMUP if how.warmup is None else how.warmup) + (how.iters or MOST)


def collect(batch: Batch, try_once: Callable[[], float], how: Measuring, budget: Budget) -> Sampled:
    """`batch(count, warmup)` makes untimed calls, then timed ones, and returns their durations.

    `try_once` makes the first warm-up call and returns what it took by the wall clock; without one, a batch starts
    with a single call.
    """
    each = math.inf if how.warmup == 0 else try_once()
    warmups = fitting(WARMUP, each, WARMUP_SHARE * budget.seconds) if how.warmup is None else how.warmup
    count = how.iters or fitting(FEWEST, each, budget.left)
    before = budget.left
    samples = list(batch(count, max(0, warmups - 1)))
    while how.iters is None and (more := wanted(samples, how.max_time)):
        each = (before - budget.left) / len(samples)
        if budget.left < each:
            break
        samples += batch(fitting(more, each, budget.left), 0)
    return Sampled(tuple(samples), warmups, _reason(samples, how))


def wanted(samples: Sequence[float], max_time: float) -> int:
    """How many more samples there should be, whatever they cost by the wall clock; 0 when there are enough."""
    n = len(samples)
    if n < FEWEST:
        return FEWEST - n
    affordable = n + math.ceil((max_time - math.fsum(samples)) / statistics.fmean(samples))
    return max(0, min(_precise(samples), affordable, MOST) - n)


def _precise(samples: Sequence[float]) -> int:
    """How many samples bring the standard error of the mean below half a percent of it."""
    return math.ceil((statistics.stdev(samples) / (PRECISION * statistics.fmean(samples))) ** 2)


def _reason(samples: Sequence[float], how: Measuring) -> str:
    if how.iters is not None:
        return "asked"
    if wanted(samples, how.max_time):
        return OUT_OF_TIME
    if _precise(samples) <= len(samples):
        return "precise"
    return "most calls" if len(samples) >= MOST else "max time"
