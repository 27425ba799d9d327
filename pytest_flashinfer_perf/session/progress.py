"""What a measuring process is doing: which case of how many, which module it compiles.

The command that started the process is told. It passes a file descriptor of its terminal, by its number in the
environment; what the process prints itself goes to a log.
"""

from __future__ import annotations

import os
import threading
import time
from typing import IO

import pytest

from pytest_flashinfer_perf.machine import builds
from pytest_flashinfer_perf.printing import safe_lines
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


EACH_S = 30.0


class Heartbeat:
    """Every half minute, also within a case: which case it is of how many, and an estimate by the mean of those done.

    Its thread writes to a standard error that pytest does not capture.
    """

    def __init__(self, words: IO[str], cases: int) -> None:
        self._words, self._cases, self._begun = words, cases, 0
        self._doing, self._start, self._ended = "", time.monotonic(), threading.Event()
        self._stop_hearing = builds.tell(self._compiles)

    def start(self) -> None:
        threading.Thread(target=self.beat, daemon=True).start()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun, self._doing = self._begun + 1, nodeid

    def pytest_sessionfinish(self) -> None:
        self._ended.set()
        self._stop_hearing()

    def _compiles(self, module: str) -> None:
        self._doing += f", compiling FlashInfer's module {module}"

    def beat(self) -> None:
        while not self._ended.wait(EACH_S):
            if self._begun:
                self._words.write(f"\n{safe_lines(self._line(time.monotonic()))}\n")
                self._words.flush()

    def _line(self, now: float) -> str:
        done = self._begun - 1
        left = (now - self._start) / done * (self._cases - done) if done else 0.0
        rest = f", about {left / 60:.0f} min left" if left >= 60 else ", less than a minute left" if done else ""
        return f"case {self._begun} of {self._cases}{rest}: {self._doing}"
