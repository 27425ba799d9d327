"""The process in which examples are launched.

It imports torch and the routines, then forks a worker, the only process that uses the device. If the worker dies, it
reports how and forks another one, so that a crash costs no more than opening the device again.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import sys
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.config.settings import Checking, Measuring
    from pytest_flashinfer_perf.fuzz.trial import Trial
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

RETIRED, OVER = 17, 18


@dataclass(frozen=True)
class ChildSetup:
    """Sent by the parent: sys.path, modules that declare backends, the device, how to run cases."""

    path: tuple[str, ...]
    modules: tuple[tuple[str, str], ...]
    device: str
    measuring: Measuring
    checking: Checking


@dataclass(frozen=True)
class Died:
    """A worker's exit status, negative for a signal."""

    status: int


@dataclass(frozen=True)
class Unable:
    """The reason why a worker cannot run any example."""

    sentence: str


def main(descriptor: int) -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    connection = Connection(descriptor)
    setup = connection.recv()
    routines = _routines(setup)
    gc.freeze()  # exclude imported modules from the workers' garbage collection
    if _device_is_in_use():  # by an imported module: a forked worker could not use it
        os._exit(_serve(connection, setup, routines))
    while (status := _status_of_a_worker(connection, setup, routines)) != OVER:
        if status != RETIRED:
            connection.send(Died(status))


def _routines(setup: ChildSetup) -> dict[str, AnyRoutine]:
    """The package's routines, with backends and routines that the modules declare."""
    from pytest_flashinfer_perf.routines import all_routines
    from pytest_flashinfer_perf.spec.routine import Routine

    sys.path[:] = setup.path
    known = all_routines()
    own = [value for name, path in setup.modules for value in vars(_loaded(name, path)).values()]
    return known | {value.name: value for value in own if isinstance(value, Routine) and value.name not in known}


def _device_is_in_use() -> bool:
    import torch

    return bool(torch.cuda.is_initialized())


def _loaded(name: str, path: str) -> object:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _status_of_a_worker(connection: Connection, setup: ChildSetup, routines: dict[str, AnyRoutine]) -> int:
    worker = os.fork()
    if worker == 0:
        os._exit(_serve(connection, setup, routines))
    return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])


def _serve(connection: Connection, setup: ChildSetup, routines: dict[str, AnyRoutine]) -> int:
    try:
        return _try_all(connection, _trial(setup), routines)
    except EOFError:
        return OVER
    except Exception as error:  # noqa: BLE001 - the parent ends the search with this message
        connection.send(Unable(f"{type(error).__name__}: {error}"))
        return OVER


def _try_all(connection: Connection, trial: Trial, routines: dict[str, AnyRoutine]) -> int:
    from pytest_flashinfer_perf.flashinfer_benchmark import lines

    while True:
        outcome = trial.run(lines.read(connection.recv(), routines)[0])
        connection.send(outcome)
        if outcome.kind == "failed" and not _is_sound(trial):
            return RETIRED


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
