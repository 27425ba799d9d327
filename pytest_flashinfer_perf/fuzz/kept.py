"""A child process for many examples: each is sent to it and gives an outcome, also if the child dies."""

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
from pytest_flashinfer_perf.fuzz.child import ChildSetup, Died, Unable, main
from pytest_flashinfer_perf.fuzz.outcome import Outcome
from pytest_flashinfer_perf.runs.formatting import last_lines

SECONDS = 300.0  # limit for an example, whose kernel may have to be compiled
LOG_LINES = 25


class ChildError(FlashinferPerfError):
    """The child cannot run any example."""


class KeptChild:
    """One process for many examples, started when it is needed, and again after it has died."""

    def __init__(self, setup: ChildSetup, seconds: float = SECONDS) -> None:
        self._setup, self._seconds = setup, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log = tempfile.TemporaryFile("a+b")  # noqa: SIM115 - closed with the child
        self._log_start = 0
        self._has_answered = False

    def close(self) -> None:
        self._stop()
        self._log.close()

    def attempt(self, words: list[str]) -> Outcome:
        """Launch and check the case with these flags in the child."""
        connection = self._connection or self._started()
        self._log_start = os.fstat(self._log.fileno()).st_size
        try:
            connection.send(words)
            if not connection.poll(self._seconds):
                self._stop()
                return Outcome("hung", f"no answer within {self._seconds:g} s", log=self._output())
            answer = connection.recv()
        except (EOFError, OSError):
            return self._gone()
        self._has_answered = True
        if isinstance(answer, Unable):
            self._stop()
            raise ChildError(f"the child process cannot use {self._setup.device}: {answer.sentence}")
        return self._crashed(answer.status) if isinstance(answer, Died) else answer

    def _gone(self) -> Outcome:
        """The outcome if the whole child died: of the example, or an error if it has not run any yet."""
        assert self._process is not None
        status = self._process.wait()
        self._stop()
        if self._has_answered:
            return self._crashed(status)
        raise ChildError(f"the child process died:\n{self._output()}") from None

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
        here.send(self._setup)
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
        return Outcome("crashed", f"the process {how}", log=self._output())

    def _output(self) -> str:
        """The output of the child since the example was sent."""
        self._log.seek(self._log_start)
        return last_lines(self._log.read().decode(errors="replace"), LOG_LINES)
