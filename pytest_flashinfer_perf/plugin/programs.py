"""Programs whose calls of the functions in compat.py become rows: `pytest --perf-record bench_mine.py`.

A program runs once, as `python bench_mine.py` would run it, while pytest collects: how many calls it makes is known at
its end. It has the GPU to itself, as cases have it later. Each of its calls is a test then, which records what was
measured, so that a run of programs has all that any other run has: rows, files, the gate. What the program prints is
captured; `-s` shows it.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf import compat
from pytest_flashinfer_perf.config.settings import Settings
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.machine.garbage import collecting
from pytest_flashinfer_perf.measurement.measure import Measurement
from pytest_flashinfer_perf.session import setup
from pytest_flashinfer_perf.session.stash import SETTINGS
from pytest_flashinfer_perf.spec import flags

if TYPE_CHECKING:
    from pytest_flashinfer_perf.plugin.fixture import Perf

NO_CALL = "made no call of bench_gpu_time, do_bench or run_bench of pytest_flashinfer_perf.compat: import them from it"
ONE_PROCESS = "--perf-record runs each program once, in this process: leave out -n and --perf-devices"
ONLY_TIMED = "--perf-record times calls, which have no shapes to search and no reference: leave out the other option"


class ProgramFile(pytest.File):
    """A Python file that is run; `device` finds the device once it is known that something is measured."""

    def __init__(self, *, device: Callable[[Settings], Device], **known: Any) -> None:
        super().__init__(**known)
        self.device = device

    def collect(self) -> Iterator[pytest.Function]:
        config, settings = self.config, self.config.stash[SETTINGS]
        if hasattr(config, "workerinput") or config.pluginmanager.has_plugin("dsession"):
            raise self.CollectError(ONE_PROCESS)
        if settings.fuzzing.on or settings.checking.only:
            raise self.CollectError(ONLY_TIMED)
        seen = self._ran(settings, once=config.getoption("benchmark_disable"))
        if not seen:
            raise self.CollectError(f"{self.path} {NO_CALL}")
        for nth, (measured, line) in enumerate(seen, start=1):
            yield pytest.Function.from_parent(self, name=_name(nth), callobj=self._recorded(measured, line))

    def _ran(self, settings: Settings, *, once: bool) -> list[tuple[Measurement, int]]:
        """What each call of the program measured, and the line that made it."""
        device, seen = self.device(settings), list[tuple[Measurement, int]]()

        def timed(call: compat.TimedCall, asked: Mapping[str, Any]) -> Measurement:
            test = f"{self.nodeid}::{_name(len(seen) + 1)}"
            how = settings.of_test(test, settings.measuring.changed_by(asked), once=once)
            made = compat.unchecked(call, how, str(device.torch), test)
            seen.append((replace(made, checking=settings.checking), _line(sys._getframe(), self.path)))  # noqa: SLF001
            return made

        alone = setup.turn_of_all(self.config, [device.uuid] if device.uuid else [])
        with alone, compat.timed_by(timed), _as_program(self.path):
            try:
                runpy.run_path(str(self.path), run_name="__main__")
            except SystemExit as end:
                if end.code:
                    raise self.CollectError(f"{self.path} ended with {end.code}") from end
        device.give_back_memory()
        return seen

    def _recorded(self, measured: Measurement, line: int) -> Callable[..., None]:
        again = flags.join(["pytest", "--perf-record", str(self.path)])

        def recorded(perf: Perf) -> None:
            perf.evaluated(lambda _once, _device: (measured, lambda row: row, {"line": line}), again)

        return recorded


def _name(nth: int) -> str:
    return f"call[{nth}]"


def _line(frame: FrameType | None, of: Path) -> int:
    """Of the program's frame that is nearest to the call; 0 where there is none, as in a thread of another file."""
    while frame is not None and frame.f_code.co_filename != str(of):
        frame = frame.f_back
    return frame.f_lineno if frame else 0


@contextmanager
def _as_program(path: Path) -> Iterator[None]:
    """With the arguments, the folder of imports and the garbage collection that Python gives a program."""
    argv, folders = sys.argv, sys.path[:]
    sys.argv, sys.path[:0] = [str(path)], [str(path.parent)]
    try:
        with collecting(on=True):  # it is off while tests are collected
            yield
    finally:
        sys.argv, sys.path[:] = argv, folders
