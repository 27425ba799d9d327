"""The current session as a run, for the reports that are written at its end."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.extensions.pages import page
from pytest_flashinfer_perf.gate.markdown import summarized
from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin.results import Board
from pytest_flashinfer_perf.printing import write_lines
from pytest_flashinfer_perf.report import markdown
from pytest_flashinfer_perf.rows.run_file import Commit, Run
from pytest_flashinfer_perf.settings.usage import not_written


def of(config: pytest.Config, board: Board) -> Run:
    return Run(
        source="this run",
        when=datetime.now(timezone.utc),
        machine=provenance.machine(config),
        commit=Commit.of(config.hook.pytest_benchmark_generate_commit_info(config=config)),
        rows=tuple(board.rows),
        block=board.block,
    )


# `--perf-html`: write the report of this session.


class HtmlFile:
    """Verifies before anything is measured that a page can be made, and writes it at the end."""

    def __init__(self, config: pytest.Config, board: Board) -> None:
        absent = page.missing()
        if absent:
            raise pytest.UsageError(f"--perf-html: {absent}")
        self._board = board
        self._path = config.invocation_params.dir / config.getoption("perf_html")
        self._note = f"--perf-html: nothing written, no case was measured or skipped: {self._path}"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not (self._board.rows or self._board.unmeasured):
            return
        try:
            page.write(self._path, [of(session.config, self._board)])
            self._note = f"wrote {self._path}"
        except OSError as error:
            self._note = not_written(session, "--perf-html", error)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        write_lines(terminalreporter, [self._note])


# The run's tables in the summary of a GitHub job; with `--perf-gate` the gate writes the verdicts instead.


class JobSummary:
    def __init__(self, board: Board) -> None:
        self._board = board
        self._annotations: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._board.rows or self._board.unmeasured:
            runs = [of(session.config, self._board)]
            sections = loading.joined(session.config.hook.pytest_perf_sections(runs=runs))
            text = "\n".join(markdown.lines(runs, sections)) + "\n"
            self._annotations += summarized(text)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for annotation in self._annotations:
            terminalreporter.write_line(annotation)
