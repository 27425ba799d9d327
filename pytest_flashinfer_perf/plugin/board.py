"""What a session measured, gathered from its reports, and shown when it ends."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.config.usage import not_written
from pytest_flashinfer_perf.report import host, runs, search, terminal, vllm
from pytest_flashinfer_perf.running import attempts, neighbours
from pytest_flashinfer_perf.runs import run_file
from pytest_flashinfer_perf.runs.formatting import duration
from pytest_flashinfer_perf.runs.run_file import SCHEMA_KEY

NOTHING = "nothing was measured, for the reasons above"
NO_CSV = "--perf-vllm-csv: nothing written, no case of vllm_decode was measured as trtllm and as baseline"


class Board:
    """Rows and skips arrive with the reports, from another process too; `is_ours` when any is of a case."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._unmeasured: dict[str, list[dict[str, Any]]] = {}
        self._looked_at: dict[str, str] = {}
        self._searches: dict[str, dict[str, Any]] = {}
        self.roofs: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self.is_ours = False

    @property
    def rows(self) -> list[dict[str, Any]]:
        return list(self._rows.values())

    @property
    def unmeasured(self) -> list[dict[str, Any]]:
        return [case for of_test in self._unmeasured.values() for case in of_test]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self.is_ours |= hasattr(report, "perf_repeat") or hasattr(report, "perf_unmeasured")
        if report.when == "setup":
            self._forget(test, row=attempts.begins(report))
        if hasattr(report, "perf_row"):
            row = self._rows[test] = json.loads(report.perf_row)
            self.roofs[runs.place(row)] = row.pop("roofs")
        if hasattr(report, "perf_unmeasured"):
            self._unmeasured.setdefault(test, []).append(json.loads(report.perf_unmeasured))
        if hasattr(report, "perf_search"):
            self._searches[test] = json.loads(report.perf_search)
        if hasattr(report, "perf_checked"):
            self._looked_at[test] = report.perf_checked

    def _forget(self, test: str, *, row: bool) -> None:
        """What an earlier attempt left."""
        self._unmeasured.pop(test, None)
        self._searches.pop(test, None)
        self._looked_at.pop(test, None)
        if row:
            self._rows.pop(test, None)

    def reasons(self, outcome: str) -> list[str]:
        """Which are the same wherever in a file they are met."""
        ended_so = (case for case in self.unmeasured if case["outcome"] == outcome)
        return [case["reason"].removeprefix(f"{case.get('line')}: ") for case in ended_so]

    def _not_understood(self) -> list[str]:
        """Lines of testlists."""
        failed = (case for case in self.unmeasured if case["outcome"] == "failed" and "line" in case)
        return [case["reason"].removeprefix("Failed: ") for case in failed]

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With -v a measured case says its time where others say PASSED."""
        if report.when != "call" or not report.passed or not hasattr(report, "perf_row"):
            return None
        return report.outcome, ".", duration(json.loads(report.perf_row)["median"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.notes += neighbours.notes(session.config) if self._rows else ()
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
        rows, looked_at, searches = self.rows, list(self._looked_at.values()), list(self._searches.values())
        skips, xfailed = self.reasons("skipped"), self.reasons("xfailed")
        not_understood = self._not_understood()
        if not (rows or skips or xfailed or not_understood or looked_at or searches or self.notes):
            return
        terminalreporter.section("flashinfer-perf")
        for line in terminal.lines(rows, skips, _known() if rows else {}, looked_at, xfailed):
            terminalreporter.write_line(line)
        for line in terminal.left("not understood", not_understood, "line"):
            terminalreporter.write_line(line)
        for line in host.lines(rows) if terminalreporter.config.getoption("perf_host") else ():
            terminalreporter.write_line(line)
        for line in search.lines(searches):
            terminalreporter.write_line(line)
        if skips and not (rows or looked_at or searches):
            terminalreporter.write_line(NOTHING)
        for note in self.notes:
            terminalreporter.write_line(note)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        if self.is_ours:
            output_json[SCHEMA_KEY] = run_file.block(self.roofs, self.unmeasured)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        if self.is_ours:
            _ours(machine_info)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_benchmark_compare_machine_info(
        self, machine_info: dict[str, Any], compared_benchmark: dict[str, Any]
    ) -> None:
        """Before anything ran, what is compared with says whether this machine's GPU and versions belong to it."""
        if SCHEMA_KEY in compared_benchmark:
            _ours(machine_info)


def _ours(machine_info: dict[str, Any]) -> None:
    machine_info |= _known()
    for reading in ("hz_actual", "hz_actual_friendly"):  # differs at every start, and warns at every compare
        machine_info.get("cpu", {}).pop(reading, None)


def _known() -> dict[str, Any]:
    from pytest_flashinfer_perf.machine import provenance

    return provenance.versions()
