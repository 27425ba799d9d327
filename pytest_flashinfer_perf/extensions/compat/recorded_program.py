"""A program in a process of its own, as `python bench_mine.py` runs it, that writes down what its calls measured.

The process that starts it names a folder in a variable of its environment. `compat` finds there how to measure, and
adds a `ProgramCall` for each call, also for one that fails. What the program sets, starts and how it ends is its own.
"""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from pytest_flashinfer_perf.api import FlashinferPerfError, Measurement, Measuring, Settings, formatting, processes

FOLDER = "FLASHINFER_PERF_PROGRAM"
HOW, CALLS, OUTPUT = "how", "calls", "output"  # files of the folder
LINES = 15  # of the output of a program that did not end well


class ProgramError(FlashinferPerfError):
    """The program did not end well, or measures where nobody writes it down."""


@dataclass(frozen=True)
class ProgramCall:
    """What a call measured, or how it failed."""

    line: int  # of the program; 0 in a thread that another file started
    measured: Measurement | None = None
    failure: str = ""


@dataclass
class Instructions:
    """How to measure on which device, for tests of this name and number, and the process that wants to know."""

    settings: Settings
    device: str
    test: str
    once: bool
    parent: int
    number: int = 0  # of the call that is made

    def timed(self, call: Callable[[Measuring, str, str], Measurement], changes: Mapping[str, Any]) -> Measurement:
        test = f"{self.test}[{self.number}]"
        how = self.settings.measuring.changed_by(changes)
        measurement = call(how.of_one_call if self.once else how, self.device, test)
        untraced = replace(measurement.timing.observations, traced={})  # observers have looked at that here
        _add(ProgramCall(_line(), replace(measurement, timing=replace(measurement.timing, observations=untraced))))
        return measurement


@functools.cache
def instructions() -> Instructions | None:
    """How to measure calls, in a program that is recorded; else None."""
    folder = os.environ.get(FOLDER)
    return pickle.loads((Path(folder) / HOW).read_bytes()) if folder else None  # noqa: S301 - its parent wrote it


_alone = threading.RLock()  # a call that is timed may make one


@contextmanager
def one_call() -> Iterator[None]:
    """Let a recorded program make one call at a time, and write down a call that fails, too."""
    orders = instructions()
    if orders is None:
        yield
        return
    with _alone:
        orders.number += 1
        try:
            _refuse_child(orders)
            yield
        except Exception as error:
            _add(ProgramCall(_line(), failure=f"{type(error).__name__}: {error}"))
            raise


def _refuse_child(orders: Instructions) -> None:
    if os.getppid() != orders.parent:
        raise ProgramError("--perf-record keeps calls of the program's own process: this one is made in a child of it")


def _add(call: ProgramCall) -> None:
    with (Path(os.environ[FOLDER]) / CALLS).open("ab", buffering=0) as file:
        file.write(pickle.dumps(call))


def _line() -> int:
    """The line of the program that is nearest to the call."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001 - no other way to a line without the text of all
    program = getattr(sys.modules["__main__"], "__file__", None)
    while frame is not None and frame.f_code.co_filename != program:
        frame = frame.f_back
    return frame.f_lineno if frame else 0


# In the process that starts it.


def ran(path: Path, how: Instructions, folder: Path, seconds: float) -> list[ProgramCall]:
    """Run the program for what its calls measure; its output is in `folder`. A call may take so many `seconds`."""
    (folder / HOW).write_bytes(pickle.dumps(how))
    (folder / CALLS).touch()
    with (folder / OUTPUT).open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the program that the user has named
            [sys.executable, str(path)],
            env={**os.environ, FOLDER: str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = _status(process, folder / CALLS, seconds)
        finally:
            if process.poll() is None:
                processes.end_group(process)
    if status:
        last_lines = formatting.last_lines((folder / OUTPUT).read_text(errors="replace"), LINES)
        raise ProgramError(f"{path} ended with {processes.cause(status)}:\n{last_lines}")
    return _read(folder / CALLS, path)


def _status(process: subprocess.Popen[bytes], calls: Path, seconds: float) -> int:
    """The exit status, unless no call has ended for so long."""
    last_size = -1
    while True:
        try:
            return process.wait(seconds or None)
        except subprocess.TimeoutExpired:  # noqa: PERF203
            if (size := calls.stat().st_size) == last_size:
                raise ProgramError(f"no call ended within {seconds:g} s (--perf-timeout)") from None
            last_size = size


def _read(path: Path, program: Path) -> list[ProgramCall]:
    calls: list[ProgramCall] = []
    with path.open("rb") as file:
        try:
            while file.peek():
                calls.append(pickle.load(file))  # noqa: S301 - the program that the user has named wrote it
        except Exception as error:
            raise ProgramError(f"{program} wrote into the file of its calls, which is not its own: {error}") from error
    return calls
