"""What the child process of a search does: it launches and checks examples."""

from __future__ import annotations

import faulthandler
import importlib.util
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_flashinfer_perf.running.child_process import Answer

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
        from pytest_flashinfer_perf.flashinfer_benchmark import lines

        try:
            trial = self._trial = self._trial or _trial(self._setup)
            outcome = trial.run(lines.read(words, self._routines)[0])
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
