"""Gather what a session measured from its test reports, and show it at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.config.usage import not_written
from pytest_flashinfer_perf.printing import write_lines
from pytest_flashinfer_perf.report import host, search, terminal, vllm
from pytest_flashinfer_perf.running import neighbours, reports
from pytest_flashinfer_perf.runs.formatting import duration
from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.run_file import FAILED, SCHEMA_KEY, Block, Roof, Unmeasured
from pytest_flashinfer_perf.runs.step import StepPlan

NOTHING = "nothing was measured, for the reasons above"
NOT_TIMED = "--benchmark-disable: answers were checked, and nothing was timed"
NO_CSV = "--perf-vllm-csv: nothing written, no case of vllm_decode was measured as trtllm and as baseline"


class Board:
    """Collects rows and skips from test reports, also of other processes; `is_ours` if any belongs to a case."""

    def __init__(self, step: Callable[[], StepPlan | None]) -> None:
        self.step = step  # of a model, if the session measures one
        self._rows: dict[str, Row] = {}
        self._unmeasured: dict[str, list[Unmeasured]] = {}
        self._checked: dict[str, str] = {}
        self._searches: dict[str, Mapping[str, Any]] = {}
        self._roofs: dict[str, Mapping[str, Roof]] = {}
        self.notes: list[str] = []
        self.is_ours = False

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    @property
    def unmeasured(self) -> list[Unmeasured]:
        return [case for of_test in self._unmeasured.values() for case in of_test]

    @property
    def block(self) -> Block:
        return Block(roofs=self._roofs, unmeasured=tuple(self.unmeasured), step=self.step())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test, carried = report.nodeid, reports.of(report)
        self.is_ours |= carried.repeat is not None or carried.unmeasured is not None
        if report.when == "setup":
            self._forget(test, row=reports.begins_attempt(report))
        if carried.row:
            self._rows[test] = carried.row
            self._roofs[carried.row.identity.place] = carried.roofs
        if carried.unmeasured:
            self._unmeasured.setdefault(test, []).append(carried.unmeasured)
        if carried.search:
            self._searches[test] = carried.search
        if carried.checked:
            self._checked[test] = carried.checked

    def _forget(self, test: str, *, row: bool) -> None:
        """Drop the results of an earlier attempt."""
        self._unmeasured.pop(test, None)
        self._searches.pop(test, None)
        self._checked.pop(test, None)
        if row:
            self._rows.pop(test, None)

    def reasons(self, outcome: str) -> list[str]:
        """Which are the same wherever in a file they are met."""
        return [case.reason.removeprefix(f"{case.line}: ") for case in self.unmeasured if case.outcome == outcome]

    def _not_understood(self) -> list[str]:
        """Lines of testlists."""
        failed = (case for case in self.unmeasured if case.outcome == FAILED and case.line is not None)
        return [case.reason.removeprefix("Failed: ") for case in failed]

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With -v, show a measured case's time beside PASSED."""
        row = reports.of(report).row
        if report.when != "call" or not report.passed or row is None:
            return None
        return report.outcome, ".", f"PASSED {duration(row.median)}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._rows:
            self.notes += neighbours.notes(session.config)
            neighbours.spare_hypothesis(session.config)
        if self.is_ours and session.config.getoption("benchmark_disable", None):
            self.notes.append(NOT_TIMED)
        folder = session.config.getoption("perf_vllm_csv")
        if folder is None or session.config.option.collectonly or hasattr(session.config, "workerinput"):
            return
        try:
            path = vllm.write_csv(self.rows, Path(folder), datetime.now().astimezone())
        except OSError as error:
            self.notes.append(not_written(session, "--perf-vllm-csv", error))
            return
        self.notes.append(f"wrote {path}" if path else NO_CSV)
        if path is None and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        rows, checked, searches = self.rows, list(self._checked.values()), list(self._searches.values())
        skips, xfailed = self.reasons("skipped"), self.reasons("xfailed")
        not_understood = self._not_understood()
        if not (rows or skips or xfailed or not_understood or checked or searches or self.notes):
            return
        terminalreporter.section("flashinfer-perf")
        write_lines(terminalreporter, terminal.lines(rows, skips, _known() if rows else {}, checked, xfailed))
        write_lines(terminalreporter, terminal.left("not understood", not_understood, "line"))
        if terminalreporter.config.getoption("perf_host"):
            write_lines(terminalreporter, host.lines(rows))
        write_lines(terminalreporter, search.lines(searches))
        is_nothing = skips and not (rows or checked or searches)
        write_lines(terminalreporter, [NOTHING, *self.notes] if is_nothing else self.notes)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        if self.is_ours:
            output_json[SCHEMA_KEY] = self.block.written()

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        if self.is_ours:
            _ours(machine_info)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_benchmark_compare_machine_info(
        self, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
    ) -> None:
        """Add this machine's GPU and versions before pytest-benchmark compares them with those of a saved run."""
        if SCHEMA_KEY in compared_benchmark:
            _ours(machine_info)


def _ours(machine_info: dict[str, Any]) -> None:
    machine_info |= _known()
    for reading in ("hz_actual", "hz_actual_friendly"):  # differs at every start, which would warn at every comparison
        machine_info.get("cpu", {}).pop(reading, None)


def _known() -> dict[str, Any]:
    from pytest_flashinfer_perf.machine import provenance

    return provenance.versions()
