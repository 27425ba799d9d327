"""One example, launched and checked, in the process that may die of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.config.settings import Checking, Measuring
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.fuzz.outcome import Outcome
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measuring.walk import CannotRunError, walk
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import Backend, Built, How

# What the library raises to say that it will not do this, by name where a class is its own or cuDNN's.
CLEAN = (
    *("ValueError", "NotImplementedError"),
    *("BackendSupportedError", "GPUArchitectureError", "LibraryError", "cudnnGraphNotSupportedError"),
)
LINES = 12
# A call's work, which the routine's inputs decide: a second on a slow core, and on a GPU.
FLOPS_CPU, FLOPS_GPU = 4e9, 2e14


class RaisedError(FlashinferPerfError):
    """Something that building or calling a backend raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Trial:
    """How cases are tried, and where."""

    measuring: Measuring
    checking: Checking
    device: Device

    def of(self, case: Case) -> Outcome:
        try:
            seen = walk(self._watched(case), self.measuring, self.checking, self.device).measurement
            self.device.synchronize()
        except CannotRunError as reason:
            return Outcome("skipped", str(reason))
        except WrongAnswerError as wrong:
            return Outcome("wrong", str(wrong))
        except RaisedError as raised:
            return _raised(raised.error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            return Outcome("failed" if _of_the_device(error) else "broken", _told(error))
        return Outcome("right", sampled=seen.sample is not None)

    def _watched(self, case: Case) -> Case:
        routine = case.routine
        most = FLOPS_GPU if self.device.is_gpu else FLOPS_CPU

        def inputs(p: Any, rand: torch.Generator, device: torch.device) -> Any:
            x = routine.inputs(p, rand, device)
            if routine.cost(p, x).flops > most:
                raise CannotRunError(f"beyond the search's {most / 1e9:g} GFLOP")
            return x

        return replace(case, routine=replace(routine, inputs=inputs, backends=dict(_watched(case))))


def _watched(case: Case) -> Iterator[tuple[str, Backend[Any, Any]]]:
    """The case's backend, so that what it raises can be told from what our own code does."""
    backend = case.backend

    def build(p: Any, x: Any, how: How) -> Built[Any]:
        built = _telling(backend.build)(p, x, how)
        return replace(built, launch=_telling(built.launch))

    yield case.backend_name, replace(backend, build=build)


def _telling(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise RaisedError(error) from error

    return call


def _raised(error: Exception) -> Outcome:
    clean = any(base.__name__ in CLEAN for base in type(error).__mro__) and not _of_the_device(error)
    return Outcome("refused", _first_line(error)) if clean else Outcome("failed", _told(error))


def _of_the_device(error: Exception) -> bool:
    """An asynchronous error of a kernel shows wherever the device is next waited for."""
    return isinstance(error, RuntimeError) and "CUDA" in str(error)


def _told(error: Exception) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__)).splitlines()[-LINES:]
    return "\n".join((_first_line(error), *frames))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
