"""Attach the row, the check and the repro commands to a test's report."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr

from pytest_flashinfer_perf.printing import safe_lines
from pytest_flashinfer_perf.running import replay, reports, stash
from pytest_flashinfer_perf.running.stash import SETTINGS
from pytest_flashinfer_perf.runs import properties


def add(item: pytest.Item, report: pytest.TestReport) -> None:
    if stash.ROW in item.stash:
        row, options = replay.finished(item, item.stash[stash.ROW], item.stash[stash.BENCHMARK])
        reports.add(report, row=row, options=options, roofs=item.stash[stash.ROOFS])
        for known in (item.user_properties, report.user_properties):
            properties.put(row, known)
    reports.add(report, checked=item.stash.get(stash.CHECKED, None), search=item.stash.get(stash.SEARCH, None))
    if report.failed and not item.config.stash[SETTINGS].fuzzing.on:  # a search names the command itself
        report.sections.append(("run it again", safe_lines("\n".join(_commands(item)))))


def _commands(item: pytest.Item) -> Iterator[str]:
    """The command of this project, and that of upstream's script if it has the case."""
    from pytest_flashinfer_perf.flashinfer_benchmark import upstream_repro

    yield stash.repeat(item, from_here=True)
    case = stash.case_of(item)
    upstream = upstream_repro.command(case) if case else None
    if upstream is not None:
        yield upstream


def make_printable(report: pytest.TestReport) -> None:
    """What pytest prints as it is: the sentences of skips and failures, and the lines of tracebacks."""
    shown: Any = report.longrepr
    if isinstance(shown, str):
        report.longrepr = safe_lines(shown)
    elif isinstance(shown, tuple):
        path, line, reason = shown
        report.longrepr = (path, line, safe_lines(reason))
    elif isinstance(shown, ExceptionChainRepr):
        for traceback, crash, _ in shown.chain:
            for entry in traceback.reprentries:
                entry.lines = [safe_lines(line) for line in entry.lines]
            if crash is not None:
                crash.message = safe_lines(crash.message)


def fail_strict_skip(item: pytest.Item, report: pytest.TestReport, reason: str) -> None:
    known_as = (item.nodeid, item.name, item.name.partition("[")[2].rstrip("]"))
    for glob in item.config.stash[SETTINGS].strict_skips:
        if any(fnmatch.fnmatchcase(name, glob) for name in known_as):
            report.outcome = "failed"
            report.when = "call"  # a failure, where pytest would call one at set-up an error
            report.longrepr = f"--perf-strict-skips={glob} does not allow this skip: {reason}"
