"""`flashinfer-perf history`: find the runs in which cases became slower or faster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flashinfer_perf.config import project_file
from pytest_flashinfer_perf.gate import history, read, thresholds, words
from pytest_flashinfer_perf.gate.history import SHORTEST, Change, Series
from pytest_flashinfer_perf.gate.verdict import COULD_NOT_JUDGE, NOTHING_WORSE, WORSE
from pytest_flashinfer_perf.printing import show
from pytest_flashinfer_perf.rows.formatting import counted, indented, wrapped

EXAMPLE = "example: flashinfer-perf history .benchmarks"


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    found = read.read([args.folder])
    series = history.read(found, thresholds.read(project_file.find(Path.cwd(), args.perf_config)))
    failures = list(history.failures(found))
    show((*lines(series, len(found)), *(line for failure in failures for line in wrapped(failure))))
    if failures:
        return WORSE
    return NOTHING_WORSE if any(one.long_enough for one in series) else COULD_NOT_JUDGE


def lines(series: Sequence[Series], files: int) -> Iterator[str]:
    changed = [one for one in series if one.found]
    for one in changed:
        yield f"{one.case}{f' on {one.gpu}' if one.gpu else ''}, {counted(len(one.points), 'run')}"
        for change in one.found:
            yield from _change(one, change)
    short = sum(not one.long_enough for one in series)
    if short:
        yield f"{short} with fewer than {2 * SHORTEST} runs, too few to tell a change from noise"
    yield f"{len(series)} series from {counted(files, 'run')}, {len(changed)} of them changed"


def _change(one: Series, change: Change) -> Iterator[str]:
    run, _ = one.points[change.at]
    commit = f", commit {run.commit.id[:10]}" if run.commit.id else ""
    size = words.percent(change.after - change.before)
    since = f"  {run.when:%Y-%m-%d %H:%M}: {size} in {one.domain}, since {run.source}{commit}"
    yield from wrapped(since, 4)
    for beside in one.beside(change):
        yield from indented(beside, 4)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "flashinfer-perf history",
        description="Find the runs in which cases became slower or faster, per case and card, in all JSON files of "
        "pytest-benchmark below a folder. Exits with 1 if a run has failures, with 2 if no case has enough runs.",
        epilog=EXAMPLE,
    )
    made.add_argument("folder", metavar="DIR", help="Folder with the runs.")
    made.add_argument(
        "--perf-config", metavar="FILE", help="Settings file. Changes below its threshold `slower` are not shown."
    )
    return made
