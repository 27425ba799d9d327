"""Find changes in a series of stored runs, and what else changed in the same run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate import changes, host, likeness, sides
from pytest_flashinfer_perf.gate.changes import SHORTEST, Change
from pytest_flashinfer_perf.gate.effects import Replicates, replicates
from pytest_flashinfer_perf.gate.sides import NEVER_ALLOWED
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.run_file import Run
from pytest_flashinfer_perf.runs.scatter import is_measured

Point = tuple[Run, Row]


@dataclass(frozen=True)
class Series:
    """The measurements of one case on one GPU: times, cycles if cases are judged by them, or host times."""

    case: str
    gpu: str | None
    domain: str
    points: tuple[Point, ...]
    values: tuple[float, ...]
    found: tuple[Change, ...]

    @property
    def long_enough(self) -> bool:
        return len(self.points) >= 2 * SHORTEST

    def beside(self, change: Change) -> Iterator[str]:
        """What else changed since the run before."""
        (before, was), (after, now) = self.points[change.at - 1], self.points[change.at]
        yield from likeness.changed_libraries([before], [after])
        if before.driver != after.driver:
            yield f"driver {before.driver} -> {after.driver}"
        gone, come = was.trace.kernels, now.trace.kernels
        if gone != come:
            yield f"now runs another kernel: {', '.join(gone or ())} -> {', '.join(come or ())}"


def read(runs: Sequence[Run], thresholds: Thresholds) -> list[Series]:
    points: dict[tuple[str, ...], list[Point]] = {}
    for run in sorted(runs, key=lambda run: run.when):
        for row in run.by_case.values():
            if is_measured(row.median):
                how = (row.provenance.instrument, row.provenance.cold_l2, row.provenance.cuda_graph)
                like = (row.case, str(row.identity.gpu_uuid), run.model(row), *map(str, how))
                points.setdefault(like, []).append((run, row))
    return [series for of_one in points.values() for series in _series(of_one, thresholds)]


def failures(runs: Sequence[Run]) -> Iterator[str]:
    """Cases that failed or had a wrong answer in the newest run of each host."""
    newest = {run.machine.get("node"): run for run in sorted(runs, key=lambda run: run.when)}
    for run in newest.values():
        for case in sides.cases([], [run], paired=False):
            found = sides.trouble(case, [], [run], same_library=False, allowed=frozenset())
            if found and found.reason in NEVER_ALLOWED:
                yield f"{case.name}, {found.reason}: {found.sentence}"


def _series(points: Sequence[Point], thresholds: Thresholds) -> Iterator[Series]:
    """What the host takes, where its threshold says how large a change of that counts."""
    rows = [row for _, row in points]
    asked = thresholds.of(rows[-1])
    yield _of_figures(points, replicates(rows, rows, paired=True)[0], asked.in_log(rows[-1].median))
    if asked.slower_host is not None:
        on_host = (host.replicates(quantity, rows, rows, paired=True) for quantity in host.QUANTITIES)
        yield from (_of_figures(points, seen, math.log1p(asked.slower_host)) for seen in on_host if seen)


def _of_figures(points: Sequence[Point], seen: Replicates, least: float) -> Series:
    values, row = tuple(map(math.log, seen.after)), points[0][1]
    found = changes.changes(values, least)
    return Series(row.case, row.identity.gpu_uuid, seen.domain, tuple(points), values, tuple(found))
