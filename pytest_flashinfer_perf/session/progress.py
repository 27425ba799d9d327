"""What a session that measures is doing: which case of how many, which module it compiles."""

from __future__ import annotations

import threading
import time
from typing import IO

from pytest_flashinfer_perf.machine import builds
from pytest_flashinfer_perf.printing import safe_lines

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
