"""`--perf-resume`: cases that an earlier run finished pass again with what it measured, and the rest is run."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_flashinfer_perf.running import reports
from pytest_flashinfer_perf.running.journal import Past
from pytest_flashinfer_perf.running.stash import repeat
from pytest_flashinfer_perf.runs import properties
from pytest_flashinfer_perf.runs.formatting import counted


class SkipFinished:
    """In the process that runs tests: finished ones pass without being set up or called.

    Only once each, since the gate may measure one of them again.
    """

    def __init__(self, finished: Mapping[str, str]) -> None:
        self._finished = dict(finished)
        self._kept: str | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        known = self._finished.pop(item.nodeid, None)
        self._kept = item.nodeid if known is not None and known == repeat(item) else None
        if self._kept is not None:
            pytest.skip("instead of setting it up")

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        return True if pyfuncitem.nodeid == self._kept else None

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if item.nodeid == self._kept and report.when == "setup":
            report.outcome, report.longrepr = "passed", None
        if item.nodeid == self._kept and report.when == "call":
            reports.add(report, is_kept=True)
        return report


class Restorer:
    """In the process that gathers rows: the report of a finished test gets the row that was measured earlier."""

    def __init__(self, past: Past, notes: list[str]) -> None:
        self._past = past
        self._notes = notes
        self._kept: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if reports.of(report).is_kept:
            self._kept.add(report.nodeid)
            finished = replace(self._past.finished[report.nodeid], is_kept=True)
            setattr(report, reports.NAME, finished)
        row = self._past.finished[report.nodeid].row if report.nodeid in self._kept else None
        if row is not None:
            properties.put(row, report.user_properties)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.USAGE_ERROR:
            kept = counted(len(self._kept), "finished case")
            self._notes.append(f"--perf-resume: {kept} of {self._past.path} not run again")


def no_journal(path: object) -> str:
    return f"--perf-resume: no journal at {path}, everything is run"


def differences(places: Sequence[Mapping[str, Any]], place: Mapping[str, Any]) -> list[str]:
    """Between here and every place that the journal knows; nothing where one of them is as here."""
    if not places or place in places:
        return []
    then = places[-1]
    return [f"{name} was {then.get(name)}, is {place.get(name)}" for name in place if then.get(name) != place.get(name)]
