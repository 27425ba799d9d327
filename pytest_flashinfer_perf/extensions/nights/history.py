"""Find changes in a series of stored runs, and what else changed in the same run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.api import Row, Run, match, verdict, words
from pytest_flashinfer_perf.extensions.nights.levels import ENOUGH, Change, changes
from pytest_flashinfer_perf.gate import series

Point = tuple[Run, Row]


@dataclass(frozen=True)
class Series:
    """The measurements of one case on one GPU: times, cycles if cases are judged by them, or an extension's figure."""

    case: str
    gpu: str | None
    domain: str
    points: tuple[Point, ...]
    values: tuple[float, ...]
    found: tuple[Change, ...]

    @property
    def long_enough(self) -> bool:
        return len(self.points) >= ENOUGH

    def beside(self, change: Change) -> Iterator[str]:
        """What else changed since the run before."""
        (before, was), (after, now) = self.points[change.at - 1], self.points[change.at]
        yield from match.changed_libraries([before], [after])
        if before.driver != after.driver:
            yield f"driver {before.driver} -> {after.driver}"
        gone, come = was.trace.kernels, now.trace.kernels
        if gone != come:
            yield words.another_kernel(gone or (), come or ())


def read(runs: Sequence[Run], rules: verdict.Rules) -> list[Series]:
    points: dict[tuple[str, ...], list[Point]] = {}
    for run in sorted(runs, key=lambda run: run.when):
        for row in run.by_case.values():
            if series.counts(row):
                like = (row.case, str(row.identity.gpu_uuid), run.model(row), *series.conditions(run, row))
                points.setdefault(like, []).append((run, row))
    return [one for of_case in points.values() for one in _series(of_case, rules)]


def failures(runs: Sequence[Run]) -> Iterator[str]:
    """Cases that failed or had a wrong answer in the newest run of each host."""
    newest = {run.machine.get("node"): run for run in sorted(runs, key=lambda run: run.when)}
    for run in newest.values():
        yield from (f"{case}, {why}" for case, why in series.failures(run))


def _series(points: Sequence[Point], rules: verdict.Rules) -> Iterator[Series]:
    row = points[0][1]
    for seen in series.judged_by([row for _, row in points], rules):
        found = changes(seen.values, seen.least)
        yield Series(row.case, row.identity.gpu_uuid, seen.domain, tuple(points), seen.values, tuple(found))
