"""What a session measured, gathered from its reports, and shown when it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_flashinfer_perf.record import SCHEMA
from pytest_flashinfer_perf.report import terminal


class Board:
    """Rows and skips arrive with the reports, from another process too; without any, this session is not ours."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.skips: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if hasattr(report, "perf_row"):
            self.rows.append(json.loads(report.perf_row))
        if report.skipped and hasattr(report, "perf_skip"):
            self.skips.append(report.perf_skip)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """With -v a measured case says its time where others say PASSED."""
        if report.when != "call" or not report.passed or not hasattr(report, "perf_row"):
            return None
        return report.outcome, ".", terminal.duration(json.loads(report.perf_row)["median"])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.rows and not self.skips:
            return
        terminalreporter.section("flashinfer-perf")
        for line in terminal.lines(self.rows, self.skips, self._versions()):
            terminalreporter.write_line(line)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        if self.rows:
            output_json["flashinfer_perf"] = SCHEMA

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        if self.rows:
            machine_info |= self._versions()
            for reading in ("hz_actual", "hz_actual_friendly"):  # differs at every start, and warns at every compare
                machine_info.get("cpu", {}).pop(reading, None)

    def _versions(self) -> dict[str, Any]:
        if not self.rows:
            return {}
        from pytest_flashinfer_perf import provenance

        return provenance.versions()
