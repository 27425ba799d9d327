"""For sessions without workers: start a process that reports which case the session died of."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
from collections.abc import Generator
from contextlib import suppress
from typing import IO

import pytest

from pytest_flashinfer_perf.running import last_words
from pytest_flashinfer_perf.running.survival import REMEDY


class Beside:
    """Sends the name of each starting test to a process that reads faulthandler's output until the session ends."""

    def __init__(self, stderr: IO[str]) -> None:
        command = [sys.executable, "-I", "-S", last_words.__file__, REMEDY]
        self._reader = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stderr=stderr, bufsize=0, start_new_session=True
        )
        assert self._reader.stdin is not None
        self._pipe = self._reader.stdin
        faulthandler.enable(self._pipe, all_threads=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        with suppress(OSError):  # somebody has ended it
            self._pipe.write(f"{last_words.CASE}{item.nodeid}\n".encode())
        return (yield)

    def close(self) -> None:
        """pytest has disabled faulthandler by now, unless it was not pytest who enabled it."""
        if faulthandler.is_enabled():
            faulthandler.enable(2)
        self._pipe.close()
        self._reader.terminate()  # what a test has forked and left may keep the other end of its pipe open
        self._reader.wait()
