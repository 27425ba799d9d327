"""Find change points: positions in a series from which on its level is different.

Optimal partitioning with PELT's pruning: the segments whose squared distances from their means, plus a penalty for
each, are smallest. `ruptures` has it too, and brings numpy and scipy; this is its special case of a mean. Spikes are
taken out first, and a segment has three points at least, so that one spike is not a change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pytest_flashinfer_perf.gate.noise import QUIETEST

SHORTEST = 3
PENALTY = 14.0  # in variances: one false change in 7,000 points, and a step of 3 sd is found within five
BESIDE = 2  # neighbours on either side that a spike is compared with
SPIKE = 4.0  # standard deviations
NORMAL_MAD = 1.4826


@dataclass(frozen=True)
class Change:
    """`at` is the index of the first point of the new level; levels are means of a whole segment."""

    at: int
    before: float
    after: float


def changes(values: Sequence[float], least: float) -> list[Change]:
    """The change points of at least that size."""
    if len(values) < 2 * SHORTEST:
        return []
    sd = _noise(values)
    calm = _without_spikes(values, sd)
    bounds = [0, *_partition(calm, PENALTY * sd * sd), len(values)]
    levels = [statistics.fmean(calm[start:end]) for start, end in pairwise(bounds)]
    found = (Change(at, *beside) for at, beside in zip(bounds[1:-1], pairwise(levels), strict=True))
    return [change for change in found if abs(change.after - change.before) >= least]


def _noise(values: Sequence[float]) -> float:
    """From steps between neighbours, of which a change of level is only one."""
    steps = [abs(after - before) for before, after in pairwise(values)]
    return max(NORMAL_MAD * statistics.median(steps) / math.sqrt(2), QUIETEST)


def _without_spikes(values: Sequence[float], sd: float) -> list[float]:
    """A point far from the median of its neighbours becomes that median."""
    medians = [statistics.median(values[max(0, i - BESIDE) : i + BESIDE + 1]) for i in range(len(values))]
    return [m if abs(value - m) > SPIKE * sd else value for value, m in zip(values, medians, strict=True)]


def _partition(values: Sequence[float], penalty: float) -> list[int]:
    """The first indices of all segments but the first."""
    sums = [0.0, *accumulate(values)]
    squares = [0.0, *accumulate(value * value for value in values)]

    def cost(start: int, end: int) -> float:
        total = sums[end] - sums[start]
        return squares[end] - squares[start] - total * total / (end - start)

    best, came_from, starts = [-penalty], [0], [0]
    for end in range(1, len(values) + 1):
        whole = [(best[s] + cost(s, end) + penalty, s) for s in starts if end - s >= SHORTEST]
        least, start = min(whole, default=(math.inf, 0))
        best.append(least)
        came_from.append(start)
        hopeless = {s for total, s in whole if total - penalty > least}
        starts = [s for s in (*starts, end) if s not in hopeless and best[s] < math.inf]
    return _walked_back(came_from)


def _walked_back(came_from: Sequence[int]) -> list[int]:
    bounds: list[int] = []
    end = len(came_from) - 1
    while came_from[end] > 0:
        end = came_from[end]
        bounds.append(end)
    return bounds[::-1]
