"""Examples are launched in a child process, since a kernel that is called with any shape may crash or hang.

`ExampleRunner` is the parent's side: a crash or timeout becomes an outcome, and another child is started.
`ChildSetup` and `Examples` are the child's side; `trial.py` launches and checks one example there.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.fuzz.findings import Outcome
from pytest_flashinfer_perf.launch.child_process import Answer, ChildProcess, Ended, StartError, cause
from pytest_flashinfer_perf.rows.formatting import last_lines

if TYPE_CHECKING:
    from pytest_flashinfer_perf.config.settings import Checking, Measuring
    from pytest_flashinfer_perf.fuzz.trial import Trial
    from pytest_flashinfer_perf.spec.routine import AnyRoutine


@dataclass(frozen=True)
class Unable:
    """The reason why a worker cannot run any example."""

    sentence: str


@dataclass(frozen=True)
class ChildSetup:
    """Sent to the child: modules that declare backends, the device, how to run cases."""

    modules: tuple[tuple[str, str], ...]
    device: str
    measuring: Measuring
    checking: Checking

    def load(self) -> Callable[[], Examples]:
        faulthandler.enable()
        warnings.simplefilter("ignore")
        routines = self._routines()
        return lambda: Examples(self, routines)

    def _routines(self) -> dict[str, AnyRoutine]:
        """The package's routines, with backends and routines that the modules declare."""
        from pytest_flashinfer_perf.routines import all_routines
        from pytest_flashinfer_perf.spec.routine import Routine

        known = all_routines()
        own = [value for name, path in self.modules for value in vars(_loaded(name, path)).values()]
        return known | {value.name: value for value in own if isinstance(value, Routine) and value.name not in known}


def _loaded(name: str, path: str) -> object:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Examples:
    """Runs the examples of one worker, which opens the device with the first."""

    def __init__(self, setup: ChildSetup, routines: dict[str, AnyRoutine]) -> None:
        self._setup, self._routines = setup, routines
        self._trial: Trial | None = None

    def __call__(self, words: list[str]) -> Answer:
        from pytest_flashinfer_perf.flashinfer_benchmark import testlist

        try:
            trial = self._trial = self._trial or _trial(self._setup)
            outcome = trial.run(testlist.cases_of_line(words, self._routines)[0])
        except Exception as error:  # noqa: BLE001 - the parent ends the search with this message
            return Answer(Unable(f"{type(error).__name__}: {error}"), retires=True)
        return Answer(outcome, retires=outcome.kind == "failed" and not _is_sound(trial))


def _trial(setup: ChildSetup) -> Trial:
    from pytest_flashinfer_perf.fuzz.trial import Trial
    from pytest_flashinfer_perf.machine import devices

    trial = Trial(setup.measuring, setup.checking, devices.find(setup.device))
    _touch(trial)
    return trial


def _touch(trial: Trial) -> None:
    import torch

    torch.zeros(1, device=trial.device.torch)
    trial.device.synchronize()


def _is_sound(trial: Trial) -> bool:
    """Whether the device still works after an error; a CUDA error makes every later call fail."""
    try:
        _touch(trial)
    except Exception:  # noqa: BLE001 - then another worker is needed
        return False
    return True


SECONDS = 300.0  # limit for an example, whose kernel may have to be compiled
LOG_LINES = 25


class ChildError(FlashinferPerfError):
    """The child cannot run any example."""


class ExampleRunner:
    """Runs examples in one child process, which is started again after it has died."""

    def __init__(self, setup: ChildSetup, seconds: float = SECONDS) -> None:
        self._device, self._seconds = setup.device, seconds
        self._child = ChildProcess(setup)

    def close(self) -> None:
        self._child.close()

    def attempt(self, words: list[str]) -> Outcome:
        """Launch and check the case with these flags in the child."""
        try:
            answer = self._child.ask(words, self._seconds)
        except StartError as error:
            raise ChildError(f"the child process died:\n{last_lines(error.output, LOG_LINES)}") from None
        if isinstance(answer, Unable):
            raise ChildError(f"the child process cannot use {self._device}: {answer.sentence}")
        return self._ended(answer) if isinstance(answer, Ended) else answer

    def _ended(self, ended: Ended) -> Outcome:
        log = last_lines(self._child.output(), LOG_LINES)
        if ended.status is None:
            return Outcome("hung", f"no answer within {self._seconds:g} s", log=log)
        how = f"was ended by {cause(ended.status)}" if ended.status < 0 else f"ended with {cause(ended.status)}"
        return Outcome("crashed", f"the process {how}", log=log)
