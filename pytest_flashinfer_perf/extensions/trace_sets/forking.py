"""A process for each solution, forked in milliseconds from one that has imported everything and opened no device."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NoReturn

from pytest_flashinfer_perf.api import FlashinferPerfError

Handler = Callable[[Connection], Callable[[Any], bytes]]
MOST_BYTES = 16 << 20  # of an answer


class NurseryError(FlashinferPerfError):
    """No process can be forked, since a solution ended the one that forks them."""


class EndedError(FlashinferPerfError):
    """The process of a solution ended: its exit status, negative for a signal, None if it gave no answer in time."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the process ended: {status}")
        self.status = status


class Nursery:
    """Make one before the device is opened: a process that was forked afterwards could not use it.

    It forks one process at a time. Pickles go only to solutions; what comes from them is bytes, which cannot run code.
    """

    def __init__(self, handler: Handler) -> None:
        self._control, there = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            # What was open before goes, above all the way to the tests' process, which trusts what comes.
            os.closerange(3, there.fileno())
            os.closerange(there.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
            _exit_after(_forks, there, handler)
        there.close()

    def process(self) -> Process:
        here, there = Pipe()
        with there:
            try:
                send_handle(self._control, there.fileno(), self._pid)
            except OSError as error:
                raise NurseryError(f"the process that forks others has ended: {error}") from error
        return Process(here, self._control)


class Process:
    """A forked process, which is ended before the next one is forked."""

    def __init__(self, connection: Connection, control: Connection) -> None:
        self._connection = connection
        self._control = control
        self._status: int | None = None
        self.deadline = float("inf")

    def ask(self, request: Any, file: int = -1) -> bytes:
        """The answer, which is not to be trusted. With a request goes an open file, if there is one."""
        try:
            self._connection.send(request)
            if file >= 0:
                send_handle(self._connection, file, 0)
            ready = wait([self._connection, self._control], max(0.0, self.deadline - time.perf_counter()))
            if ready == [self._connection]:
                return self._connection.recv_bytes(MOST_BYTES)
        except (EOFError, OSError):
            raise EndedError(self.end()) from None
        self.end()
        raise EndedError(None)

    def end(self) -> int:
        """Kill it and its group, and return its exit status: its own if it had ended before."""
        if self._status is not None:
            return self._status
        self._connection.close()
        try:
            self._control.send(None)
            self._status = int(self._control.recv())
        except (EOFError, OSError) as error:
            raise NurseryError(f"the process that forks others has ended: {error}") from error
        return self._status


def _exit_after(call: Callable[..., int], *args: Any) -> NoReturn:
    """A forked process has no business in the code of the one that forked it, whatever happens."""
    status = 1
    try:
        status = call(*args)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(status)


def _forks(control: Connection, handler: Handler) -> int:
    """Fork a process for each connection to the nursery, and end it when the judge asks or ends."""
    while True:
        try:
            private = Connection(recv_handle(control))
        except (EOFError, OSError, RuntimeError):
            return 0
        child = os.fork()
        if child == 0:
            os.setsid()
            control.close()
            _exit_after(_serve, private, handler)
        private.close()
        status = _ended(control, child)
        if status is None:
            return 0
        control.send(status)


def _ended(control: Connection, child: int) -> int | None:
    """The exit status of the child, which is killed when the judge asks; None if the judge has ended itself."""
    try:
        control.recv()
        judge_asks = True
    except (EOFError, OSError):
        judge_asks = False
    os.kill(child, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status if judge_asks else None


def _serve(connection: Connection, handler: Handler) -> int:
    handle = handler(connection)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return 0
        connection.send_bytes(handle(request))
