"""Examples are launched in a child process, since a kernel that is called with any shape may crash or hang.

`ExampleRunner` is the parent's side: a crash or timeout becomes an outcome, and another child is started.
`ChildSetup` and `Examples` are the child's side; `Trial` launches and checks one example there.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_flashinfer_perf.api import (
    Checking,
    Device,
    FlashinferPerfError,
    Measuring,
    check,
    devices,
    errors,
    formatting,
    lines,
    one_case,
    processes,
)
from pytest_flashinfer_perf.extensions.fuzz import child_process
from pytest_flashinfer_perf.extensions.fuzz.findings import Outcome
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Built, CannotRunError, LaunchOptions, Routine


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
        """Each worker's `Examples`, with the package's routines and those that the modules declare."""
        faulthandler.enable()
        warnings.simplefilter("ignore")
        routines = all_routines()
        own = [value for name, path in self.modules for value in vars(_loaded(name, path)).values()]
        new = {value.name: value for value in own if isinstance(value, Routine) and value.name not in routines}
        return lambda: Examples(self, routines | new)


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

    def __call__(self, words: list[str]) -> child_process.Answer:
        try:
            if self._trial is None:
                self._trial = Trial(self._setup.measuring, self._setup.checking, devices.find(self._setup.device))
                self._trial.device.touch()
            outcome = self._trial.run(lines.cases_of(words, self._routines)[0])
        except Exception as error:  # noqa: BLE001 - the parent ends the search with this message
            return child_process.Answer(Unable(errors.in_one_line(error)), retires=True)
        return child_process.Answer(outcome, retires=outcome.kind == "failed" and not _is_sound(self._trial.device))


def _is_sound(device: Device) -> bool:
    """Whether the device still works after an error; a CUDA error makes every later call fail."""
    try:
        device.touch()
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
        self._child = child_process.ChildProcess(setup)

    def close(self) -> None:
        self._child.close()

    def attempt(self, words: list[str]) -> Outcome:
        """Launch and check the case with these flags in the child."""
        try:
            answer = self._child.ask(words, self._seconds)
        except child_process.StartError as error:
            raise ChildError(f"the child process died:\n{formatting.last_lines(error.output, LOG_LINES)}") from None
        if isinstance(answer, Unable):
            raise ChildError(f"the child process cannot use {self._device}: {answer.sentence}")
        return self._ended(answer) if isinstance(answer, child_process.Ended) else answer

    def _ended(self, ended: child_process.Ended) -> Outcome:
        log = formatting.last_lines(self._child.output(), LOG_LINES)
        if ended.status is None:
            return Outcome("hung", f"no answer within {self._seconds:g} s", log=log)
        how = (
            f"was ended by {processes.cause(ended.status)}"
            if ended.status < 0
            else f"ended with {processes.cause(ended.status)}"
        )
        return Outcome("crashed", f"the process {how}", log=log)


# Launch and check one example, in the process that may die of it.

# Errors by which the library rejects a problem, by name, since some classes are its own or cuDNN's.
CLEAN = (
    *("ValueError", "NotImplementedError"),
    *("BackendSupportedError", "GPUArchitectureError", "LibraryError", "cudnnGraphNotSupportedError"),
)
LINES = 12
# Limits for the FLOPs of a call: about a second on a slow core, and on a GPU.
FLOPS_CPU, FLOPS_GPU = 4e9, 2e14


class RaisedError(FlashinferPerfError):
    """Something that building or calling a backend raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Trial:
    """How, and on which device, examples are run."""

    measuring: Measuring
    checking: Checking
    device: Device

    def run(self, case: Case) -> Outcome:
        try:
            one_case.run_case(self._watched(case), self.measuring, self.checking, self.device)
            self.device.synchronize()
        except CannotRunError as reason:
            return Outcome("skipped", str(reason))
        except check.WrongAnswerError as wrong:
            return Outcome("wrong", str(wrong))
        except RaisedError as raised:
            error, names = raised.error, {base.__name__ for base in type(raised.error).__mro__}
            if names.isdisjoint(CLEAN) or _of_the_device(error):
                return Outcome("failed", _with_traceback(error))
            return Outcome("refused", errors.in_one_line(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            return Outcome("failed" if _of_the_device(error) else "broken", _with_traceback(error))
        return Outcome("right")

    def _watched(self, case: Case) -> Case:
        """Bound the routine's work, and tell errors of the backend from those of our own code."""
        routine, backend = case.routine, case.backend
        most = FLOPS_GPU if self.device.is_gpu else FLOPS_CPU

        def inputs(p: Any, rand: torch.Generator, device: torch.device) -> Any:
            x = routine.inputs(p, rand, device)
            if routine.cost(p, x).flops > most:
                raise CannotRunError(f"beyond the search's {most / 1e9:g} GFLOP")
            return x

        def build(p: Any, x: Any, options: LaunchOptions) -> Built[Any]:
            built = _marking_errors(backend.build)(p, x, options)
            return replace(built, launch=_marking_errors(built.launch))

        backends = {case.backend_name: replace(backend, build=build)}
        return replace(case, routine=replace(routine, inputs=inputs, backends=backends))


def _marking_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise RaisedError(error) from error

    return call


def _of_the_device(error: Exception) -> bool:
    """Whether it is an error of a kernel, which may be raised by any later call that waits for the device."""
    return isinstance(error, RuntimeError) and "CUDA" in str(error)


def _with_traceback(error: Exception) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__)).splitlines()[-LINES:]
    return "\n".join((errors.in_one_line(error), *frames))
