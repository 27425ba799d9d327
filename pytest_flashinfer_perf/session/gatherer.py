"""Add the rows of other processes and of a resumed run to this session's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from pytest_flashinfer_perf.session import benchmark_rows, journal, reports
from pytest_flashinfer_perf.session.journal import Journal


class Gatherer:
    def __init__(self, config: pytest.Config, run: str) -> None:
        self._config = config
        self._run = run
        self._journals: dict[str, Journal] = {}
        self._added: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if reports.begins_attempt(report) and report.nodeid in self._added:
            benchmark_rows.forget(self._config, report.nodeid)
        carried = reports.of(report)
        if carried.row and (carried.is_kept or hasattr(report, "node")):
            self._added.add(report.nodeid)
            benchmark_rows.add(self._config, carried.row, carried.options)
        if carried.place and not carried.is_kept:
            self._write_down(report, carried.place)

    def _write_down(self, report: pytest.TestReport, place: Mapping[str, Any]) -> None:
        """For a worker that cannot."""
        path, known_as = journal.path_of(self._config), json.dumps(place)
        if path is not None:
            if known_as not in self._journals:
                self._journals[known_as] = Journal(path, self._run, place)
                self._config.add_cleanup(self._journals[known_as].close)
            self._journals[known_as].finished(report)
