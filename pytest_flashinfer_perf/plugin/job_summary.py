"""The run's tables in the summary of a GitHub job; with `--perf-gate` the gate writes the verdicts instead."""

from __future__ import annotations

import pytest

from pytest_flashinfer_perf.gate import github
from pytest_flashinfer_perf.plugin import this_run
from pytest_flashinfer_perf.plugin.board import Board
from pytest_flashinfer_perf.report import markdown


class JobSummary:
    def __init__(self, board: Board) -> None:
        self._board = board
        self._annotations: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._board.rows or self._board.unmeasured:
            text = "\n".join(markdown.lines([this_run.of(session.config, self._board)])) + "\n"
            self._annotations += github.summarized(text)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for annotation in self._annotations:
            terminalreporter.write_line(annotation)
