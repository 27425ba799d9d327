"""The data that this plugin attaches to pytest's test reports, and sends between processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.row import Identity, Row
from pytest_flashinfer_perf.rows.run_file import Roof, Unmeasured

NAME = "flashinfer_perf"


@dataclass(frozen=True)
class Options:
    """The fields of pytest-benchmark's entry of a test that are not part of the row."""

    group: str | None = None
    param: str | None = None
    marker: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CaseReport:
    row: Row | None = None
    plain: Row | None = None  # of a benchmark without the perf fixture
    options: Options = Options()
    roofs: Mapping[str, Roof] = field(default_factory=dict)  # of the row's device, by source
    unmeasured: Unmeasured | None = None
    checked: str | None = None  # the result of an answer that was compared and not timed
    parts: Mapping[str, Any] = field(default_factory=dict)  # what extensions tell of the test, by their names
    repeat: str | None = None  # the commands that run the case again
    ended: str | None = None  # how the case ended its process, or would have
    is_poisoned: bool = False  # the process has lost its CUDA context


NOTHING = CaseReport()


def of(report: pytest.TestReport) -> CaseReport:
    carried: CaseReport = getattr(report, NAME, NOTHING)
    return carried


def add(report: pytest.TestReport, **values: Any) -> None:
    setattr(report, NAME, replace(of(report), **values))


def begins_attempt(report: pytest.TestReport) -> bool:
    """Whether the test starts anew, which voids earlier attempts: pytest-rerunfailures runs a failed test again."""
    return report.when == "setup"


def written(carried: CaseReport) -> dict[str, Any]:
    """The data as JSON, without empty fields."""
    values = {one.name: getattr(carried, one.name) for one in dataclasses.fields(carried)}
    return {name: fields.written(value) for name, value in values.items() if value != getattr(NOTHING, name)}


def read(values: Any, where: str) -> CaseReport:
    return fields.read(CaseReport, values, where)


class Serializer:
    """Converts the data to JSON and back, for xdist and for files of reports."""

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
        data = yield
        if data is not None and NAME in data:
            data[NAME] = written(data[NAME])
        return data

    @pytest.hookimpl(wrapper=True)
    def pytest_report_from_serializable(self) -> Generator[None, object, object]:
        report = yield
        if isinstance(report, pytest.TestReport) and hasattr(report, NAME):
            setattr(report, NAME, read(getattr(report, NAME), NAME))
        return report


# Cases without a row, written beside the rows: pytest-benchmark's JSON has measured ones only.


def unmeasured_of(report: pytest.TestReport, identity: Identity, line: str | None = None) -> Unmeasured:
    """Make the entry of a case without a row; `xfailed` is neither a skip nor a failure."""
    outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
    why, ended = reason(report), of(report).ended
    return Unmeasured(identity=identity, test=report.nodeid, outcome=outcome, ended=ended, reason=why, line=line)


def reason(report: pytest.TestReport) -> str:
    """Give pytest's own text in one piece, without the traceback."""
    if hasattr(report, "wasxfail"):
        return report.wasxfail or "expected to fail"
    if report.skipped and isinstance(report.longrepr, (tuple, list)):  # a list, where it was JSON meanwhile
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)
