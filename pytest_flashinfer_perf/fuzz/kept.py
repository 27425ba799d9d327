"""A kept child: examples go in, outcomes come out, and its death is one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.fuzz.child import Died, Home, Unable, main
from pytest_flashinfer_perf.fuzz.outcome import Outcome
from pytest_flashinfer_perf.runs.formatting import last_lines

SECONDS = 300.0  # that an example may take: the first of a kind may compile its kernel
LOG_LINES = 25


class ChildError(FlashinferPerfError):
    """The child cannot try anything at all: the search would say nothing of the backend."""


class KeptChild:
    """One process for many examples; it is started when it is needed, and again when it is gone."""

    def __init__(self, home: Home, seconds: float = SECONDS) -> None:
        self._home, self._seconds = home, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed with the child
        self._said_before = 0
        self._has_answered = False

    def close(self) -> None:
        self._stop()
        self._log.close()

    def attempt(self, words: list[str]) -> Outcome:
        """The case that these flags say, launched and checked there."""
        connection = self._connection or self._started()
        self._said_before = os.fstat(self._log.fileno()).st_size
        try:
            connection.send(words)
            if not connection.poll(self._seconds):
                self._stop()
                return Outcome("hung", f"no answer within {self._seconds:g} s", log=self._said())
            answer = connection.recv()
        except (EOFError, OSError):
            return self._gone()
        self._has_answered = True
        if isinstance(answer, Unable):
            self._stop()
            raise ChildError(f"the child cannot use {self._home.device}: {answer.sentence}")
        return self._crashed(answer.status) if isinstance(answer, Died) else answer

    def _gone(self) -> Outcome:
        """The example ended more than a worker, or the child has never got as far as trying one."""
        assert self._process is not None
        status = self._process.wait()
        self._stop()
        if self._has_answered:
            return self._crashed(status)
        raise ChildError(f"the child is gone:\n{self._said()}") from None

    def _started(self) -> Connection:
        here, there = Pipe()
        with there:
            program = f"from {main.__module__} import main; main({there.fileno()})"
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-c", program],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        self._connection = here
        here.send(self._home)
        return here

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process = self._connection = None

    def _crashed(self, status: int) -> Outcome:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"
        return Outcome("crashed", f"the process {how}", log=self._said())

    def _said(self) -> str:
        """What the child has printed since the example was sent."""
        self._log.seek(self._said_before)
        return last_lines(self._log.read().decode(errors="replace"), LOG_LINES)
