"""Measure FlashInfer's GPU kernels, and your own, from inside pytest.

PYTEST_DONT_REWRITE: the commands and `measure` import this package before pytest does, which would warn of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_flashinfer_perf.checking.check import WrongAnswerError
    from pytest_flashinfer_perf.engine.measure import Measurement, measure
    from pytest_flashinfer_perf.routines.answers import check_answer
    from pytest_flashinfer_perf.settings.settings import Measuring, MeasuringError
    from pytest_flashinfer_perf.spec.routine import CannotRunError
    from pytest_flashinfer_perf.strategies import strategies_for

__all__ = [
    "CannotRunError",
    "Measurement",
    "Measuring",
    "MeasuringError",
    "WrongAnswerError",
    "check_answer",
    "measure",
    "strategies_for",
]

# Loaded when they are first used: importing the plugin must not import torch.
_HOMES = {
    "CannotRunError": "spec.routine",
    "Measurement": "engine.measure",
    "Measuring": "settings.settings",
    "MeasuringError": "settings.settings",
    "WrongAnswerError": "checking.check",
    "check_answer": "routines.answers",
    "measure": "engine.measure",
    "strategies_for": "strategies",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
