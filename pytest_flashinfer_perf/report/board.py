"""What a session measured, gathered from its reports, and shown when it ends."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.report import runs, search, terminal, vllm
from pytest_flashinfer_perf.report.layout import duration
from pytest_flashinfer_perf.run_file import SCHEMA, SCHEMA_KEY
from pytest_flashinfer_perf.usage import not_written

NO_CSV = "--perf-vllm-csv: nothing written, no case of vllm_decode was measured as trtllm and as baseline"


class Board:
    """Rows and skips arrive with the reports, from another process too; without any, this session is not ours."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.unmeasured: list[dict[str, Any]] = []
        self.roofs: dict[str, dict[str, Any]] = {}
        self.looked_at: list[str] = []
        self.searches: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "perf_row"):
            self._add(json.loads(report.perf_row))
        if hasattr(report, "perf_unmeasured"):
            self.unmeasured.append(json.loads(report.perf_unmeasured))
        if hasattr(report, "perf_search"):
            self.searches.append(json.loads(report.perf_search))
        if hasattr(report, "perf_checked"):
            self.looked_at.append(report.perf_checked)

    def _add(self, row: dict[str, Any]) -> None:
        self.roofs[runs.place(row)] = row.pop("roofs")
        self.rows.append(row)

    @property
    def skips(self) -> list[str]:
        return [case["reason"] for case in self.unmeasured if case["outcome"] == "skipped"]

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With -v a measured case says its time where others say PASSED."""
        if report.when != "call" or not report.passed or not hasattr(report, "perf_row"):
            return None
        return report.outcome, ".", duration(json.loads(report.perf_row)["median"])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
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
        if not (self.rows or self.skips or self.looked_at or self.searches or self.notes):
            return
        terminalreporter.section("flashinfer-perf")
        for line in terminal.lines(self.rows, self.skips, _known() if self.rows else {}, self.looked_at):
            terminalreporter.write_line(line)
        for line in search.lines(self.searches):
            terminalreporter.write_line(line)
        for note in self.notes:
            terminalreporter.write_line(note)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        if self.rows or self.unmeasured:
            output_json[SCHEMA_KEY] = {**SCHEMA, "roofs": self.roofs, "unmeasured": self.unmeasured}

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        if self.rows or self.unmeasured:
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
    from pytest_flashinfer_perf import provenance

    return provenance.versions()
