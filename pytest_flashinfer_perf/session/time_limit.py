"""The time limit of a case; compiling and waiting for a lock do not count.

Python's faulthandler keeps the time, in a thread of its own that needs no GIL: what hangs in C is ended too.
"""

from __future__ import annotations

import faulthandler
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import IO

from pytest_flashinfer_perf.machine import builds

SOON = 0.001
LAST_WORDS = 0.5  # before the end: where the GIL is free, there is time for a sentence


class Limit:
    """Limits one case after the other. `announce` is called shortly before a process that is not replaced is ended."""

    def __init__(self, seconds: float, words: IO[str], announce: Callable[[], None] | None = None) -> None:
        self._seconds = seconds
        self._words = words
        self._announce = announce
        self._left = 0.0
        self._since: float | None = None
        self._timer: Timer | None = None

    @contextmanager
    def of_one(self) -> Iterator[None]:
        self.restart()
        _running.append(self)
        try:
            with builds.pausing(self.halted):
                yield
        finally:
            _running.remove(self)
            self._halt()

    def restart(self) -> None:
        """Give the whole time again, as another part of the case begins that may hang."""
        self._halt()
        self._left = self._seconds
        self._run()

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Stop the clock for whatever is not the case's own time."""
        if self._since is None:
            yield
            return
        self._halt()
        try:
            yield
        finally:
            self._run()

    def _run(self) -> None:
        self._since = time.monotonic()
        faulthandler.dump_traceback_later(max(self._left, SOON), exit=True, file=self._words)
        if self._announce is not None:
            self._timer = Timer(max(self._left - LAST_WORDS, 0), self._announce)
            self._timer.daemon = True
            self._timer.start()

    def _halt(self) -> None:
        if self._since is None:
            return
        faulthandler.cancel_dump_traceback_later()
        if self._timer is not None:
            self._timer.cancel()
        self._left -= time.monotonic() - self._since
        self._since = None


_running: list[Limit] = []


def restart() -> None:
    for limit in _running[-1:]:
        limit.restart()


@contextmanager
def not_counted() -> Iterator[None]:
    """Exclude what runs meanwhile from the case's time; without a limit, do nothing."""
    if not _running:
        yield
        return
    with _running[-1].halted():
        yield
