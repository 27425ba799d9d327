"""`flashinfer-perf history`: the moments at which cases became slower or faster, over many stored runs."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_flashinfer_perf.config import project_file
from pytest_flashinfer_perf.gate import history, runs, thresholds, words
from pytest_flashinfer_perf.gate.changes import SHORTEST, Change
from pytest_flashinfer_perf.gate.history import Series
from pytest_flashinfer_perf.gate.verdict import COULD_NOT_JUDGE, NOTHING_WORSE, WORSE
from pytest_flashinfer_perf.runs.formatting import WIDTH, counted

EXAMPLE = "example: flashinfer-perf history .benchmarks"


def main(arguments: Sequence[str]) -> int:
    said = parser().parse_args(arguments)
    found = runs.read([said.folder])
    series = history.read(found, thresholds.read(project_file.find(Path.cwd(), said.perf_config)))
    failures = list(history.failures(found))
    sys.stdout.writelines(f"{line}\n" for line in (*lines(series, len(found)), *_wrapped(failures)))
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
        yield f"{short} with fewer than {2 * SHORTEST} runs: a change of those cannot be told from noise"
    yield f"{len(series)} series from {counted(files, 'run')}, {len(changed)} of them changed"


def _wrapped(failures: Iterable[str]) -> Iterator[str]:
    for failure in failures:
        yield from textwrap.wrap(failure, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _change(one: Series, change: Change) -> Iterator[str]:
    run, _ = one.points[change.at]
    commit = f", commit {run.commit.id[:10]}" if run.commit.id else ""
    size = words.percent(change.after - change.before)
    since = f"  {run.when:%Y-%m-%d %H:%M}: {size} in {one.domain}, since {run.source}{commit}"
    yield from textwrap.wrap(since, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    for beside in one.beside(change):
        yield from textwrap.wrap(beside, WIDTH, initial_indent="    ", subsequent_indent="      ")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "flashinfer-perf history",
        description="Find changes of level, per case and card, in all files of pytest-benchmark below a folder.",
        epilog=EXAMPLE,
    )
    made.add_argument("folder", metavar="DIR", help="where the runs are")
    made.add_argument("--perf-config", metavar="FILE", help="settings file: its `slower` is the least that is shown")
    return made
