"""What a measuring process is doing: which case of how many, which module it compiles, how long the rest may take.

`Progress` tells the command that started the process. It passes a file descriptor of its terminal, by its number in the
environment; what the process prints itself goes to a log. `Heartbeat` tells people who see pytest's dots alone.
"""

from __future__ import annotations

import os
import time

import pytest

from pytest_flashinfer_perf.printing import write_lines
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.session import reports

TERMINAL = "FLASHINFER_PERF_TERMINAL"  # the number of the descriptor


def of_command() -> Progress | None:
    """The progress that a command asks for, else None. Processes that this one starts do not inherit the descriptor."""
    descriptor = os.environ.pop(TERMINAL, None)
    return None if descriptor is None else Progress(int(descriptor))


class Progress:
    def __init__(self, descriptor: int) -> None:
        self._terminal = os.fdopen(descriptor, "w", buffering=1)
        self._begun = self._cases = 0

    def say(self, sentence: str) -> None:
        self._terminal.write(f"{sentence}\n")

    def compiles(self, module: str) -> None:
        self.say(f"  compiling FlashInfer's module {module}")

    def pytest_collection(self) -> None:
        self.say("collecting the cases")

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._cases = len(session.items)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun += 1
        of = f" of {self._cases}" if self._cases else ""  # workers of xdist collect their cases themselves
        self.say(f"case {self._begun}{of}: {nodeid.rpartition('::')[2]}")

    def pytest_sessionfinish(self) -> None:
        self.say(f"{counted(self._begun, 'case')} done")

    def pytest_unconfigure(self) -> None:
        self._terminal.close()


EACH_S = 30.0


class Heartbeat:
    """In a run of that length, the case that begins and an estimate by the mean of those that are done.

    The main process of xdist is told of cases by its workers, and that any of them measures by the first report.
    """

    def __init__(self, terminal: pytest.TerminalReporter, cases: int, *, measures: bool) -> None:
        self._terminal, self._cases, self._measures, self._begun = terminal, cases, measures, 0
        self._after_dots = ""
        self._start = self._said = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._cases, self._after_dots = len(ids), "\n"  # pytest ends lines of dots itself where tests are its own

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._measures |= reports.of(report) != reports.NOTHING

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        now = time.monotonic()
        if self._measures and self._begun and now - self._said >= EACH_S:
            self._said = now
            left = (now - self._start) / self._begun * (self._cases - self._begun)
            self._terminal.write(self._after_dots)
            rest = f"about {left / 60:.0f} min left" if left >= 60 else "less than a minute left"
            write_lines(self._terminal, [f"case {self._begun + 1} of {self._cases}, {rest}: {nodeid}"])
        self._begun += 1
