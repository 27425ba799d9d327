"""The current session as a run, for the reports that are written at its end."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from pytest_flashinfer_perf.gate.markdown import summarized
from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin.results import Board
from pytest_flashinfer_perf.report import markdown
from pytest_flashinfer_perf.rows.run_file import Commit, Run


def of(config: pytest.Config, board: Board) -> Run:
    return Run(
        source="this run",
        when=datetime.now(timezone.utc),
        machine=provenance.machine(config),
        commit=Commit.of(config.hook.pytest_benchmark_generate_commit_info(config=config)),
        rows=tuple(board.rows),
        block=board.block,
    )


# The run's tables in the summary of a GitHub job; with `--perf-gate` the gate writes the verdicts instead.


class JobSummary:
    def __init__(self, board: Board) -> None:
        self._board = board
        self._annotations: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._board.rows or self._board.unmeasured:
            text = "\n".join(markdown.lines([of(session.config, self._board)])) + "\n"
            self._annotations += summarized(text)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for annotation in self._annotations:
            terminalreporter.write_line(annotation)
