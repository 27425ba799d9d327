"""Find changes in a series of stored runs, and what else changed in the same run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.extensions.nights.levels import ENOUGH, Change, changes
from pytest_flashinfer_perf.gate import calm, effects, match, words
from pytest_flashinfer_perf.gate.effects import Replicates
from pytest_flashinfer_perf.gate.verdict import Rules
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.rows.scatter import is_measured

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


def read(runs: Sequence[Run], rules: Rules) -> list[Series]:
    points: dict[tuple[str, ...], list[Point]] = {}
    for run in sorted(runs, key=lambda run: run.when):
        for row in run.by_case.values():
            if is_measured(row.median) and row.is_sound and not calm.is_busy(row):
                how = (row.provenance.instrument, row.provenance.cold_l2, row.provenance.cuda_graph)
                like = (row.case, str(row.identity.gpu_uuid), run.model(row), *map(str, how))
                points.setdefault(like, []).append((run, row))
    return [series for of_one in points.values() for series in _series(of_one, rules)]


def failures(runs: Sequence[Run]) -> Iterator[str]:
    """Cases that failed or had a wrong answer in the newest run of each host."""
    newest = {run.machine.get("node"): run for run in sorted(runs, key=lambda run: run.when)}
    for run in newest.values():
        for case, trouble in match.failures(run):
            yield f"{case.name}, {trouble.reason}: {trouble.sentence}"


def _series(points: Sequence[Point], rules: Rules) -> Iterator[Series]:
    """Of extensions' quantities those whose threshold says how large a change of them counts."""
    rows = [row for _, row in points]
    asked = rules.thresholds.of(rows[-1])
    gaps = effects.gap_replicates(rows, rows, paired=True)
    parts = (effects.replicates(rows, rows, paired=True)[0], gaps if _are_of_graphs(rows) else None)
    yield from (_of_figures(points, seen, asked.in_log(rows[-1].median)) for seen in parts if seen)
    for quantity in rules.quantities:
        if (share := asked.others.get(quantity.slower)) is not None:
            beside = (figure.replicates(rows, rows, paired=True) for figure in quantity.figures)
            yield from (_of_figures(points, seen, math.log1p(share)) for seen in beside if seen)


def _are_of_graphs(rows: Sequence[Row]) -> bool:
    """Gaps of launches change with the load of the host: that is no change of level."""
    return all(row.timed.gap_of != "host" for row in rows)


def _of_figures(points: Sequence[Point], seen: Replicates, least: float) -> Series:
    values, row = tuple(map(math.log, seen.after)), points[0][1]
    found = changes(values, least)
    return Series(row.case, row.identity.gpu_uuid, seen.domain, tuple(points), values, tuple(found))
