"""What a measuring process is doing: which case of how many, which module it compiles.

The command that started the process is told. It passes a file descriptor of its terminal, by its number in the
environment; what the process prints itself goes to a log.
"""

from __future__ import annotations

import os

import pytest

from pytest_flashinfer_perf.rows.formatting import counted

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
