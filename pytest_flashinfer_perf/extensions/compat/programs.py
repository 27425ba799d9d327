"""Programs whose calls of the functions in compat.py become rows: `pytest --perf-record bench_mine.py`.

A program runs once, in a process of its own, while pytest collects: how many calls it makes is known at its end. It has
the GPU to itself, as cases have it later. Each of its calls is a test then, which records what was measured, so that a
run of programs has all that any other run has: rows, files, the gate. The number of calls is a part of their names,
since it alone tells them apart. What the program prints is captured; `-s` shows it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_flashinfer_perf.api import SETTINGS, Device, Measurement, Row, Settings, setup
from pytest_flashinfer_perf.extensions.compat import recorded_program
from pytest_flashinfer_perf.extensions.compat.recorded_program import Instructions, ProgramCall, ProgramError
from pytest_flashinfer_perf.spec import flags

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Perf

NO_CALL = "made no call of bench_gpu_time or do_bench of pytest_flashinfer_perf.extensions.compat: import them from it"
OF = "-of-"


FACTS = "flashinfer-perf-machine"  # the core's plugin that finds facts of the machine while tests are collected


@contextmanager
def _alone_before_tests(config: pytest.Config, device: Device) -> Iterator[None]:
    """Have the device while tests are collected, with nothing of this session beside it."""
    facts: Any = config.pluginmanager.get_plugin(FACTS)
    if facts is not None:
        facts.pytest_runtestloop()
    with setup.turn_of_all(config, [device.uuid] if device.uuid else []):
        yield


class ProgramFile(pytest.File):
    """A Python file that is run."""

    def collect(self) -> Iterator[pytest.Function]:
        try:
            calls = self._ran(self.config.stash[SETTINGS])
        except ProgramError as error:
            raise self.CollectError(str(error)) from error
        if not calls:
            raise self.CollectError(f"{self.path} {NO_CALL}")
        for nth, call in enumerate(calls, start=1):
            yield pytest.Function.from_parent(self, name=f"call[{nth}{OF}{len(calls)}]", callobj=self._recorded(call))

    def _ran(self, settings: Settings) -> list[ProgramCall]:
        device, once = setup.find_device(settings), self.config.getoption("benchmark_disable")
        how = Instructions(settings, str(device.torch), f"{self.nodeid}::call", once, os.getpid())
        with tempfile.TemporaryDirectory() as folder:
            try:
                with _alone_before_tests(self.config, device):
                    return recorded_program.ran(self.path, how, Path(folder), self.config.getoption("perf_timeout"))
            finally:
                output = Path(folder, recorded_program.OUTPUT)
                sys.stdout.write(output.read_text(errors="replace") if output.exists() else "")

    def _recorded(self, call: ProgramCall) -> Callable[..., None]:
        again = flags.join(["pytest", "--perf-record", str(self.path)])

        def evaluate(_once: bool, device: Device) -> tuple[Measurement, Callable[[Row], Row], Mapping[str, Any]]:
            if call.measured is None:
                pytest.fail(f"line {call.line}: {call.failure}", pytrace=False)
            checking = self.config.stash[SETTINGS].checking
            return replace(call.measured, device=device, checking=checking), lambda row: row, {"line": call.line}

        def recorded(perf: Perf) -> None:
            perf.evaluated(evaluate, again)

        return recorded
