"""Launch and check one example, in the process that may die of it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.config.settings import Checking, Measuring
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.fuzz.findings import Outcome
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measurement.one_case import run_case
from pytest_flashinfer_perf.spec.case import Case
from pytest_flashinfer_perf.spec.routine import Backend, Built, CannotRunError, LaunchOptions

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
            seen = run_case(self._watched(case), self.measuring, self.checking, self.device).measurement
            self.device.synchronize()
        except CannotRunError as reason:
            return Outcome("skipped", str(reason))
        except WrongAnswerError as wrong:
            return Outcome("wrong", str(wrong))
        except RaisedError as raised:
            return _raised(raised.error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
            return Outcome("failed" if _of_the_device(error) else "broken", _with_traceback(error))
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
    """The case's backend, wrapped so that its errors can be distinguished from those of our own code."""
    backend = case.backend

    def build(p: Any, x: Any, options: LaunchOptions) -> Built[Any]:
        built = _marking_errors(backend.build)(p, x, options)
        return replace(built, launch=_marking_errors(built.launch))

    yield case.backend_name, replace(backend, build=build)


def _marking_errors(function: Callable[..., Any]) -> Callable[..., Any]:
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
    return Outcome("refused", _first_line(error)) if clean else Outcome("failed", _with_traceback(error))


def _of_the_device(error: Exception) -> bool:
    """Whether it is an error of a kernel, which may be raised by any later call that waits for the device."""
    return isinstance(error, RuntimeError) and "CUDA" in str(error)


def _with_traceback(error: Exception) -> str:
    frames = "".join(traceback.format_tb(error.__traceback__)).splitlines()[-LINES:]
    return "\n".join((_first_line(error), *frames))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
