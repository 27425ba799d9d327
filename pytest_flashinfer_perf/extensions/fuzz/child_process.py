"""A process that answers requests which may crash it or never end.

The child imports what all requests need, then forks a worker, the only process that uses the device. When a worker has
died or is used up, the child forks another one, so that a crash costs no more than opening the device again.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from pytest_flashinfer_perf.api import FlashinferPerfError, garbage, processes

START_SECONDS = 120.0
END_SECONDS = 10.0
RETIRED, OVER = 17, 18
STARTS = 2  # the first finds that a child which could not fork has retired

Handler = Callable[[Any], "Answer"]


class Program(Protocol):
    """What a child runs. It is pickled and sent to the child."""

    def load(self) -> Callable[[], Handler]:
        """Import all that is needed; returns a function that is called in each worker, for its handler of requests."""
        ...


@dataclass(frozen=True)
class Answer:
    """The answer to a request, and whether its worker can take another request."""

    value: Any
    retires: bool = False


@dataclass(frozen=True)
class Ended:
    """A worker's exit status, negative for a signal; None if it was killed because it gave no answer in time."""

    status: int | None


class StartError(FlashinferPerfError):
    """The child ended before its first worker was ready."""

    def __init__(self, status: int, output: str) -> None:
        super().__init__(f"{processes.cause(status)}\n{output}")
        self.output = output


class ChildProcess:
    """Starts the child with the first request, and again after the child itself has ended."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._worker: int | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_APPEND)  # this process moves the position that the child writes at

    def ask(self, request: Any, seconds: float) -> Any:
        """The answer, or `Ended`. Raises StartError."""
        connection = self._ready()
        os.ftruncate(self._log.fileno(), 0)
        try:
            connection.send(request)
            if not connection.poll(seconds):
                self.end_worker()
                return Ended(None)
            answer = connection.recv()
        except (EOFError, OSError):
            return Ended(self._stop(END_SECONDS))
        if isinstance(answer, Ended) or answer.retires:
            self._worker = None
        return answer.value if isinstance(answer, Answer) else answer

    def output(self) -> str:
        """The text that was printed since the last request."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def end_worker(self) -> None:
        """Kill the worker, if there is one, so that the next request gets a new one."""
        worker, self._worker = self._worker, None
        if self._connection is None or worker is None:
            return
        with suppress(EOFError, OSError):
            os.kill(worker, signal.SIGKILL)
            if self._connection.poll(END_SECONDS) and isinstance(self._connection.recv(), Ended):
                return
        self._stop()

    def close(self) -> None:
        self._stop()
        self._log.close()

    def _ready(self) -> Connection:
        """The connection to a worker that waits for a request."""
        for _ in range(STARTS):
            connection = self._connection or self._started()
            with suppress(EOFError, OSError):
                if self._worker is None and connection.poll(START_SECONDS):
                    self._worker = connection.recv()
            if self._worker is not None:
                return connection
            status = self._stop(END_SECONDS)
            if status != RETIRED:
                break
        raise StartError(status, self.output())

    def _started(self) -> Connection:
        here, there = Pipe()
        with there:
            program = f"from {__name__} import main; main({there.fileno()})"
            self._process = subprocess.Popen(  # noqa: S603 - this module
                [sys.executable, "-u", "-c", program],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        self._connection = here
        with suppress(OSError):  # a child that has ended is noticed when its worker is awaited
            here.send(sys.path)
            here.send(self._program)
        return here

    def _stop(self, patience: float = 0.0) -> int:
        """End the child and its processes, and return its exit status: its own if it ends within `patience` seconds."""
        process, self._process = self._process, None
        if self._connection is not None:
            self._connection.close()
        self._connection = self._worker = None
        if process is None:
            return 0
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        return processes.end_group(process)


def main(descriptor: int) -> None:
    """Run the child: fork workers until the connection is closed."""
    connection = Connection(descriptor)
    sys.path[:] = connection.recv()
    with garbage.importing():
        start = connection.recv().load()
    if _device_is_in_use():  # by an imported module: a forked worker could not use it
        os._exit(_serve(connection, start))
    while True:
        if (worker := os.fork()) == 0:
            os._exit(_serve(connection, start))
        status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        if status == OVER:
            return
        if status != RETIRED:
            _drop_unread(connection)
            connection.send(Ended(status))


def _drop_unread(connection: Connection) -> None:
    """A worker may end before it has read its request, or all of it: that is not the next worker's."""
    os.set_blocking(connection.fileno(), False)
    with suppress(BlockingIOError):
        while os.read(connection.fileno(), 1 << 16):
            pass
    os.set_blocking(connection.fileno(), True)


def _device_is_in_use() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())


def _serve(connection: Connection, start: Callable[[], Handler]) -> int:
    try:
        handle = start()
        connection.send(os.getpid())
        while True:
            try:
                request = connection.recv()
            except EOFError:
                return OVER
            answer = handle(request)
            connection.send(answer)
            if answer.retires:
                return RETIRED
    except BaseException:  # noqa: BLE001 - its process ends in any case
        traceback.print_exc()
        return 1
