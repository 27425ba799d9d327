"""Find changes in a series of stored runs, and what else changed in the same run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pytest_flashinfer_perf.gate import calm, effects, match
from pytest_flashinfer_perf.gate.effects import Domain, Replicates
from pytest_flashinfer_perf.gate.match import NEVER_ALLOWED
from pytest_flashinfer_perf.gate.noise import QUIETEST
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.rows.scatter import is_measured

Point = tuple[Run, Row]


@dataclass(frozen=True)
class Series:
    """The measurements of one case on one GPU: times, cycles if cases are judged by them, or host times."""

    case: str
    gpu: str | None
    domain: Domain
    points: tuple[Point, ...]
    values: tuple[float, ...]
    found: tuple[Change, ...]

    @property
    def long_enough(self) -> bool:
        return len(self.points) >= 2 * SHORTEST

    def beside(self, change: Change) -> Iterator[str]:
        """What else changed since the run before."""
        (before, was), (after, now) = self.points[change.at - 1], self.points[change.at]
        yield from match.changed_libraries([before], [after])
        if before.driver != after.driver:
            yield f"driver {before.driver} -> {after.driver}"
        gone, come = was.trace.kernels, now.trace.kernels
        if gone != come:
            yield f"now runs another kernel: {', '.join(gone or ())} -> {', '.join(come or ())}"


def read(runs: Sequence[Run], thresholds: Thresholds) -> list[Series]:
    points: dict[tuple[str, ...], list[Point]] = {}
    for run in sorted(runs, key=lambda run: run.when):
        for row in run.by_case.values():
            if is_measured(row.median) and not calm.is_busy(row):
                how = (row.provenance.instrument, row.provenance.cold_l2, row.provenance.cuda_graph)
                like = (row.case, str(row.identity.gpu_uuid), run.model(row), *map(str, how))
                points.setdefault(like, []).append((run, row))
    return [series for of_one in points.values() for series in _series(of_one, thresholds)]


def failures(runs: Sequence[Run]) -> Iterator[str]:
    """Cases that failed or had a wrong answer in the newest run of each host."""
    newest = {run.machine.get("node"): run for run in sorted(runs, key=lambda run: run.when)}
    for run in newest.values():
        for case in match.cases([], [run], paired=False):
            found = match.trouble(case, [], [run], same_library=False, allowed=frozenset())
            if found and found.reason in NEVER_ALLOWED:
                yield f"{case.name}, {found.reason}: {found.sentence}"


def _series(points: Sequence[Point], thresholds: Thresholds) -> Iterator[Series]:
    """What the host takes, where its threshold says how large a change of that counts."""
    rows = [row for _, row in points]
    asked = thresholds.of(rows[-1])
    gaps = effects.gap_replicates(rows, rows, paired=True)
    parts = (effects.replicates(rows, rows, paired=True)[0], gaps if _are_of_graphs(rows) else None)
    yield from (_of_figures(points, seen, asked.in_log(rows[-1].median)) for seen in parts if seen)
    if asked.slower_host is not None:
        on_host = (effects.host_replicates(one, rows, rows, paired=True) for one in (Domain.HOST, Domain.PLAN))
        yield from (_of_figures(points, seen, math.log1p(asked.slower_host)) for seen in on_host if seen)


def _are_of_graphs(rows: Sequence[Row]) -> bool:
    """Gaps of launches change with the load of the host: that is no change of level."""
    return all(row.timed.gap_of != "host" for row in rows)


def _of_figures(points: Sequence[Point], seen: Replicates, least: float) -> Series:
    values, row = tuple(map(math.log, seen.after)), points[0][1]
    found = changes(values, least)
    return Series(row.case, row.identity.gpu_uuid, seen.domain, tuple(points), values, tuple(found))


# Find change points: positions in a series from which on its level is different. Optimal partitioning with PELT's
# pruning: the segments whose squared distances from their means, plus a penalty for each, are smallest. `ruptures`
# has it too, and brings numpy and scipy; this is its special case of a mean. Spikes are taken out first, and a
# segment has three points at least, so that one spike is not a change.

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
