"""`flashinfer-perf compare` and `history`: verdicts on stored runs; nothing is measured."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.cli import judging
from pytest_flashinfer_perf.cli.commands import add_json, parser_of, show_json
from pytest_flashinfer_perf.config import project_file
from pytest_flashinfer_perf.gate import history as histories
from pytest_flashinfer_perf.gate import read, thresholds, words
from pytest_flashinfer_perf.gate.history import Series
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.levels import SHORTEST
from pytest_flashinfer_perf.gate.verdict import COULD_NOT_JUDGE, NOTHING_WORSE, WORSE
from pytest_flashinfer_perf.printing import show
from pytest_flashinfer_perf.rows.formatting import counted, indented, wrapped
from pytest_flashinfer_perf.rows.run_file import RunError

COMPARES = "example: flashinfer-perf compare --base main-*.json --head pr-*.json --markdown verdicts.md"
SERIES = "example: flashinfer-perf history .benchmarks"


def compare(arguments: Sequence[str]) -> int:
    args = compare_parser().parse_args(arguments)
    base, head = read.read(args.base, args.storage), read.read(args.head, args.storage)
    if args.paired and len(base) != len(head):
        raise RunError(f"--paired needs as many files of --base as of --head, got {len(base)} and {len(head)}")
    rules = judging.rules(args, paired=args.paired, runs=[*base, *head])
    return judging.publish(judge(base, head, rules), args)


def compare_parser() -> argparse.ArgumentParser:
    made = parser_of(
        "compare",
        "Compare JSON files of pytest-benchmark, one per process, with those of a baseline, and print a "
        "verdict for each case. Exits with 0 if no slowdown is found, with 1 if a case is slower or wrong, with 2 if "
        "the comparison is incomplete.",
        COMPARES,
    )
    base, head = "The baseline: files, folders or saved names.", "The new runs, judged against --base, named likewise."
    made.add_argument("--base", nargs="+", required=True, metavar="FILE", help=base)
    made.add_argument("--head", nargs="+", required=True, metavar="FILE", help=head)
    paired = "The n-th file of --base and the n-th of --head were measured one after the other, which reduces noise."
    made.add_argument("--paired", action="store_true", help=paired)
    storage = "Folder of saved runs. Default: %(default)s."
    made.add_argument("--storage", type=Path, default=read.STORAGE, metavar="DIR", help=storage)
    judging.add_options(made)
    return made


def history(arguments: Sequence[str]) -> int:
    args = history_parser().parse_args(arguments)
    found = read.read([args.folder])
    series = histories.read(found, thresholds.read(project_file.find(Path.cwd(), args.perf_config)))
    failures = list(histories.failures(found))
    if args.as_json:
        show_json({"runs": len(found), "series": list(map(_facts, series)), "failures": failures})
    else:
        show((*_lines(series, len(found)), *(line for failure in failures for line in wrapped(failure))))
    if failures:
        return WORSE
    return NOTHING_WORSE if any(one.long_enough for one in series) else COULD_NOT_JUDGE


def _lines(series: Sequence[Series], files: int) -> Iterator[str]:
    changed = [one for one in series if one.found]
    for one in changed:
        yield f"{one.case}{f' on {one.gpu}' if one.gpu else ''}, {counted(len(one.points), 'run')}"
        yield from _changes(one)
    short = sum(not one.long_enough for one in series)
    if short:
        yield f"{short} with fewer than {2 * SHORTEST} runs, too few to tell a change from noise"
    yield f"{len(series)} series from {counted(files, 'run')}, {len(changed)} of them changed"


def _changes(one: Series) -> Iterator[str]:
    for change in one.found:
        run, _ = one.points[change.at]
        commit = f", commit {run.commit.id[:10]}" if run.commit.id else ""
        size = words.percent(change.after - change.before)
        yield from wrapped(f"  {run.when:%Y-%m-%d %H:%M}: {size} in {one.domain}, since {run.source}{commit}", 4)
        for beside in one.beside(change):
            yield from indented(beside, 4)


def _facts(one: Series) -> dict[str, Any]:
    """A series with its changes; a change is a ratio less 1."""
    changes = [
        {
            "source": one.points[change.at][0].source,
            "when": one.points[change.at][0].when.isoformat(),
            "commit": one.points[change.at][0].commit.id,
            "change": math.expm1(change.after - change.before),
            "beside": list(one.beside(change)),
        }
        for change in one.found
    ]
    named = {"case": one.case, "gpu_uuid": one.gpu, "domain": one.domain, "runs": len(one.points)}
    return {**named, "long_enough": one.long_enough, "changes": changes}


def history_parser() -> argparse.ArgumentParser:
    made = parser_of(
        "history",
        "Find the runs in which cases became slower or faster, per case and card, in all JSON files of "
        "pytest-benchmark below a folder. Exits with 1 if a run has failures, with 2 if no case has enough runs.",
        SERIES,
    )
    settings = "Settings file. Changes below its threshold `slower` are not shown."
    made.add_argument("folder", metavar="DIR", help="Folder with the runs.")
    made.add_argument("--perf-config", metavar="FILE", help=settings)
    add_json(made)
    return made
