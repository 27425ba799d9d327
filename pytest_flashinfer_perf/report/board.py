"""What a session measured, gathered from its reports, and shown when it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_flashinfer_perf.record import SCHEMA, SCHEMA_KEY
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
        for line in terminal.lines(self.rows, self.skips, _known() if self.rows else {}):
            terminalreporter.write_line(line)

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self, output_json: dict[str, Any]) -> None:
        if self.rows:
            output_json[SCHEMA_KEY] = SCHEMA

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        if self.rows:
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
