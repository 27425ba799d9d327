"""`flashinfer-perf history`: where cases became slower or faster in a folder of many runs; nothing is measured."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from typing import Any

from pytest_flashinfer_perf.api import commands, formatting, judging, printing, verdict, words
from pytest_flashinfer_perf.extensions.nights import history
from pytest_flashinfer_perf.extensions.nights.history import Series
from pytest_flashinfer_perf.extensions.nights.levels import ENOUGH

EXAMPLE = "example: flashinfer-perf history .benchmarks"


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    found = judging.runs([args.folder])
    series = history.read(found, judging.in_settings(judging.settings(args)))
    failures = list(history.failures(found))
    if args.as_json:
        commands.show_json({"runs": len(found), "series": list(map(_facts, series)), "failures": failures})
    else:
        printing.show(
            (*_lines(series, len(found)), *(line for failure in failures for line in formatting.wrapped(failure)))
        )
    if failures:
        return verdict.WORSE
    return verdict.NOTHING_WORSE if any(one.long_enough for one in series) else verdict.COULD_NOT_JUDGE


def _lines(series: Sequence[Series], files: int) -> Iterator[str]:
    changed = [one for one in series if one.found]
    for one in changed:
        yield f"{one.case}{f' on {one.gpu}' if one.gpu else ''}, {formatting.counted(len(one.points), 'run')}"
        yield from _changes(one)
    short = sum(not one.long_enough for one in series)
    if short:
        yield f"{short} with fewer than {ENOUGH} runs, too few to tell a change from noise"
    yield f"{len(series)} series from {formatting.counted(files, 'run')}, {len(changed)} of them changed"


def _changes(one: Series) -> Iterator[str]:
    for change in one.found:
        run, _ = one.points[change.at]
        commit = f", commit {run.commit.id[:10]}" if run.commit.id else ""
        size = words.percent(change.after - change.before)
        crept = f", creeping until {one.points[change.until][0].source}" if change.is_drift else ""
        since = f"since {run.source}{commit}{crept}"
        yield from formatting.wrapped(f"  {run.when:%Y-%m-%d %H:%M}: {size} in {one.domain}, {since}", 4)
        for beside in one.beside(change):
            yield from formatting.indented(beside, 4)


def _facts(one: Series) -> dict[str, Any]:
    """A series with its changes; a change is a ratio less 1."""
    changes = []
    for change in one.found:
        run, _ = one.points[change.at]
        found = {"source": run.source, "when": run.when.isoformat(), "commit": run.commit.id}
        size = math.expm1(change.after - change.before)
        changes.append({**found, "change": size, "beside": list(one.beside(change))})
    named = {"case": one.case, "gpu_uuid": one.gpu, "domain": one.domain, "runs": len(one.points)}
    return {**named, "long_enough": one.long_enough, "changes": changes}


def parser() -> argparse.ArgumentParser:
    made = commands.parser_of(
        "history",
        "Find the runs in which cases became slower or faster, per case and card, in all JSON files of "
        "pytest-benchmark below a folder. Exits with 1 if a run has failures, with 2 if no case has enough runs.",
        EXAMPLE,
    )
    settings = "Settings file. Changes below its threshold `slower` are not shown."
    made.add_argument("folder", metavar="DIR", help="Folder with the runs.")
    made.add_argument("--perf-config", metavar="FILE", help=settings)
    commands.add_json(made)
    return made
