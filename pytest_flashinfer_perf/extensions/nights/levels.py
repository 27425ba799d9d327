"""Find change points: positions in a series from which on its level is different.

Optimal partitioning: the segments whose squared distances from their means, plus a penalty for each, are smallest.
`ruptures` has it too, and brings scipy; this is its special case of a mean, of many series at a time. Spikes are taken
out first, and a segment has three points at least, so that one spike is not a change.

A drift makes a staircase of such steps, each of which may be too small to count. Stairs to which a straight line fits
better are one change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pytest_flashinfer_perf.api import scatter

Floats: TypeAlias = npt.NDArray[np.float64]

SHORTEST = 3
ENOUGH = 2 * SHORTEST  # runs, for a change to be told
PENALTY = 14.0  # in variances: one false change in 7,000 points, and a step of 3 sd is found within five
BESIDE = 2  # neighbours on either side that a spike is compared with
SPIKE = 4.0  # standard deviations
NORMAL_MAD = 1.4826
BENDS = 16  # places that are tried for each end of a drift
AT_A_TIME = 256  # series, whose tables fit into a cache


@dataclass(frozen=True)
class Change:
    """`at` is the index of the first point of the new level; levels are means of a whole segment.

    The level before began at `first`, that after ends before `last`. Of a drift `until` is where its last level began.
    """

    at: int
    before: float
    after: float
    until: int
    first: int
    last: int

    @property
    def is_drift(self) -> bool:
        return self.until > self.at


@dataclass(frozen=True)
class Levels:
    """The noise of a series between neighbours, its segments' bounds, the changes that count, and it without spikes."""

    sd: float
    bounds: tuple[int, ...]
    found: tuple[Change, ...]
    calm: Floats

    @property
    def alike(self) -> float:
        """How much a point is like the one before beyond its level, from 0 to 0.9."""
        parts = [self.calm[start:end] - self.calm[start:end].mean() for start, end in pairwise(self.bounds)]
        left = np.concatenate(parts)
        return float(np.clip(left[1:] @ left[:-1] / max(left @ left, scatter.QUIETEST**2), 0.0, 0.9))


def levels(series: Floats, least: Sequence[float]) -> Iterator[Levels]:
    """Of each row, which are series of one length, with the size from which on its changes count."""
    if series.shape[1] < ENOUGH:
        yield from (Levels(0.0, (0, series.shape[1]), (), values) for values in series)
        return
    for start in range(0, len(series), AT_A_TIME):
        some = series[start : start + AT_A_TIME]
        sds = _noise(some)
        calm = _without_spikes(some, sds)
        penalties = PENALTY * sds**2
        parts = _partitions(calm, penalties)
        for values, penalty, bounds, large in zip(calm, penalties, parts, least[start:], strict=False):
            found = tuple(one for one in _joined(values, penalty, bounds) if abs(one.after - one.before) >= large)
            yield Levels(float((penalty / PENALTY) ** 0.5), bounds, found, values)


def _noise(series: Floats) -> Floats:
    """From steps between neighbours, of which a change of level is only one."""
    steps = np.median(np.abs(np.diff(series, axis=1)), axis=1)
    sds: Floats = np.maximum(NORMAL_MAD * steps / np.sqrt(2), scatter.QUIETEST)
    return sds


def _without_spikes(series: Floats, sds: Floats) -> Floats:
    """A point far from the median of its neighbours becomes that median; an end has as many, on one side."""
    length, width = series.shape[1], 2 * BESIDE + 1
    starts = np.clip(np.arange(length) - BESIDE, 0, length - width)
    medians = np.stack([np.median(series[:, start : start + width], axis=1) for start in starts], axis=1)
    return np.where(np.abs(series - medians) > SPIKE * sds[:, None], medians, series)


def _partitions(series: Floats, penalties: Floats) -> list[tuple[int, ...]]:
    """The bounds of all segments of each series, its ends included."""
    count, length = series.shape
    centred = series - series.mean(axis=1, keepdims=True)
    sums = np.concatenate([np.zeros((count, 1)), np.cumsum(centred, axis=1)], axis=1)
    # The least cost of all that lies before a start, less the squares up to it, which are the same in any partition.
    until = np.full((count, length + 1), np.inf)
    until[:, 0] = 0.0
    came_from = np.zeros((count, length + 1), dtype=np.intp)
    for end in range(SHORTEST, length + 1):
        starts = end - SHORTEST + 1
        within = (sums[:, end, None] - sums[:, :starts]) ** 2
        within /= np.arange(end, end - starts, -1)
        total = until[:, :starts] - within
        came_from[:, end] = total.argmin(axis=1)
        until[:, end] = total[np.arange(count), came_from[:, end]] + penalties
    return [_walked_back(row) for row in came_from]


def _walked_back(came_from: npt.NDArray[np.intp]) -> tuple[int, ...]:
    bounds = [len(came_from) - 1]
    while bounds[-1] > 0:
        bounds.append(int(came_from[bounds[-1]]))
    return tuple(bounds[::-1])


def _joined(values: Floats, penalty: float, bounds: Sequence[int]) -> Iterator[Change]:
    """A change at each bound inside; of stairs that are a drift one from the first to the last."""
    means = [float(values[start:end].mean()) for start, end in pairwise(bounds)]
    first = 0
    while first < len(means) - 1:
        several = range(_same_way(means, first), first + 1, -1)
        drift = (last for last in several if _is_ramp(values, penalty, bounds[first : last + 2]))
        last = next(drift, first + 1)
        ends = (bounds[last], bounds[first], bounds[last + 1])
        yield Change(bounds[first + 1], means[first], means[last], *ends)
        first = last


def _same_way(means: Sequence[float], first: int) -> int:
    """The last of the levels that go on in the direction of the first step."""
    signs = np.sign(np.diff(means[first:]))
    turns = np.flatnonzero(signs != signs[0])
    return first + (int(turns[0]) if len(turns) else len(signs))


def _is_ramp(values: Floats, penalty: float, bounds: Sequence[int]) -> bool:
    """Whether a straight line between two levels is a better account of several steps: its two bends cost as two."""
    seen = values[bounds[0] : bounds[-1]]
    stairs = sum(float(values[start:end].var()) * (end - start) for start, end in pairwise(bounds))
    starts = np.unique(np.linspace(bounds[0], bounds[1], BENDS).astype(int)) - bounds[0]
    ends = np.unique(np.linspace(bounds[-2], bounds[-1], BENDS).astype(int)) - bounds[0]
    begin, end = (grid.reshape(-1, 1) for grid in np.meshgrid(starts, ends))
    along = np.clip((np.arange(len(seen)) - begin) / (end - begin), 0, 1)
    along -= along.mean(axis=1, keepdims=True)
    explained = ((along @ seen) ** 2 / (along**2).sum(axis=1)).max()
    ramp = float(seen.var()) * len(seen) - float(explained)
    return ramp <= stairs + (len(bounds) - 4) * penalty
