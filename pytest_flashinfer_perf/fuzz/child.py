"""The process that examples are launched in.

It imports torch and the routines, then forks a worker, which alone uses the device; when that dies it says how, and
forks the next. So a crash costs as much as opening the device, not as much as starting over.
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
class Home:
    """What the child needs to be as its parent is: where modules are, those that declare backends, how to try cases."""

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
    """Why a worker cannot try anything."""

    sentence: str


def main(descriptor: int) -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")
    connection = Connection(descriptor)
    home = connection.recv()
    routines = _routines(home)
    gc.freeze()  # workers collect what examples leave, not all that was imported
    if _device_is_in_use():  # by a module that was loaded: a fork could not use it
        os._exit(_serve(connection, home, routines))
    while (status := _status_of_a_worker(connection, home, routines)) != OVER:
        if status != RETIRED:
            connection.send(Died(status))


def _routines(home: Home) -> dict[str, AnyRoutine]:
    """The package's, with the backends that these modules add, and routines of their own."""
    from pytest_flashinfer_perf.routines import all_routines
    from pytest_flashinfer_perf.spec.routine import Routine

    sys.path[:] = home.path
    known = all_routines()
    own = [value for name, path in home.modules for value in vars(_loaded(name, path)).values()]
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


def _status_of_a_worker(connection: Connection, home: Home, routines: dict[str, AnyRoutine]) -> int:
    worker = os.fork()
    if worker == 0:
        os._exit(_serve(connection, home, routines))
    return os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])


def _serve(connection: Connection, home: Home, routines: dict[str, AnyRoutine]) -> int:
    try:
        return _try_all(connection, _trial(home), routines)
    except EOFError:
        return OVER
    except Exception as error:  # noqa: BLE001 - the parent ends the search with it
        connection.send(Unable(f"{type(error).__name__}: {error}"))
        return OVER


def _try_all(connection: Connection, trial: Trial, routines: dict[str, AnyRoutine]) -> int:
    from pytest_flashinfer_perf.flashinfer_benchmark import lines

    while True:
        outcome = trial.of(lines.read(connection.recv(), routines)[0])
        connection.send(outcome)
        if outcome.kind == "failed" and not _is_sound(trial):
            return RETIRED


def _trial(home: Home) -> Trial:
    from pytest_flashinfer_perf.fuzz.trial import Trial
    from pytest_flashinfer_perf.machine import devices

    trial = Trial(home.measuring, home.checking, devices.find(home.device))
    _touch(trial)
    return trial


def _touch(trial: Trial) -> None:
    import torch

    torch.zeros(1, device=trial.device.torch)
    trial.device.synchronize()


def _is_sound(trial: Trial) -> bool:
    """After an error: one of CUDA's stays, and every later call fails with it."""
    try:
        _touch(trial)
    except Exception:  # noqa: BLE001 - then this process is of no more use
        return False
    return True
