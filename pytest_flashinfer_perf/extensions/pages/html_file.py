"""`--perf-html`: write the page of this session."""

from __future__ import annotations

import pytest

from pytest_flashinfer_perf.api import BOARD, printing, usage
from pytest_flashinfer_perf.extensions.pages import page
from pytest_flashinfer_perf.plugin import report_files


class HtmlFile:
    """Verifies before anything is measured that a page can be made, and writes it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        absent = page.missing()
        if absent:
            raise pytest.UsageError(f"--perf-html: {absent}")
        self._board = config.stash[BOARD]
        self._path = config.invocation_params.dir / config.getoption("perf_html")
        self._note = f"--perf-html: nothing written, no case was measured or skipped: {self._path}"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not (self._board.rows or self._board.unmeasured):
            return
        try:
            page.write(self._path, [report_files.of(session.config, self._board)])
            self._note = f"wrote {self._path}"
        except OSError as error:
            self._note = usage.not_written(session, "--perf-html", error)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        printing.write_lines(terminalreporter, [self._note])
