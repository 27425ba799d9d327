"""The page of `--perf-html`, which a session writes of itself at its end."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from pytest_flashinfer_perf.api import BOARD, Run, printing, provenance, run_file, usage


def run_of(config: pytest.Config) -> Run | None:
    """The session as a run; None where it has no case."""
    board = config.stash.get(BOARD, None)
    if board is None or not (board.rows or board.unmeasured):
        return None
    return Run(
        source="this run",
        when=datetime.now(timezone.utc),
        machine=provenance.machine(config),
        commit=run_file.Commit.of(config.hook.pytest_benchmark_generate_commit_info(config=config)),
        rows=tuple(board.rows),
        block=board.block,
    )


class HtmlFile:
    """Verifies before anything is measured that a page can be made, and writes it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        from pytest_flashinfer_perf.extensions.reports import page

        absent = page.missing()
        if absent:
            raise pytest.UsageError(f"--perf-html: {absent}")
        self._path = config.invocation_params.dir / config.getoption("perf_html")
        self._note = f"--perf-html: nothing written, no case was measured or skipped: {self._path}"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        from pytest_flashinfer_perf.extensions.reports import page

        run = run_of(session.config)
        if run is None:
            return
        try:
            page.write(self._path, [run])
            self._note = f"wrote {self._path}"
        except OSError as error:
            self._note = usage.not_written(session, "--perf-html", error)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        printing.write_lines(terminalreporter, [self._note])
