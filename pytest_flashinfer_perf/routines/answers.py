"""Check the answer of one backend of a routine, in a script or a test without the fixture."""

from __future__ import annotations

from typing import Any

from pytest_flashinfer_perf.engine.one_case import run_case
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.settings.settings import Checking, Measuring
from pytest_flashinfer_perf.spec.case import Case, backend_named, routine_named
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Shape


def check_answer(routine: str | AnyRoutine, backend: str, params: Any, seed: int = 0, device: str = "auto") -> None:
    """Check a backend's answer, untimed; raises WrongAnswerError, or CannotRunError if it cannot run."""
    declared = routine_named(routine, all_routines()) if isinstance(routine, str) else routine
    case = Case(declared, Shape(params), backend_named(backend, declared), seed)
    run_case(case, Measuring(), Checking(refcheck="only"), devices.find(device))
