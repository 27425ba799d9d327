"""The names that a routine's file imports: `from pytest_flashinfer_perf.spec import Params, Routine, flag`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_flashinfer_perf.checking.check import Rows, Tolerance
    from pytest_flashinfer_perf.spec.nested import tensors
    from pytest_flashinfer_perf.spec.params import Fault, ParamError, Params, autotune, flag
    from pytest_flashinfer_perf.spec.presets import Model, Presets, Spread
    from pytest_flashinfer_perf.spec.routine import Backend, Built, CannotRunError, Cost, LaunchOptions, Routine, Shape

__all__ = [
    "Backend",
    "Built",
    "CannotRunError",
    "Cost",
    "Fault",
    "LaunchOptions",
    "Model",
    "ParamError",
    "Params",
    "Presets",
    "Routine",
    "Rows",
    "Shape",
    "Spread",
    "Tolerance",
    "autotune",
    "flag",
    "tensors",
]

# Loaded when they are first used: options and commands read flags without torch.
_HOMES = {
    "checking.check": ("Rows", "Tolerance"),
    "spec.params": ("Fault", "ParamError", "Params", "autotune", "flag"),
    "spec.presets": ("Model", "Presets", "Spread"),
    "spec.routine": ("Backend", "Built", "CannotRunError", "Cost", "LaunchOptions", "Routine", "Shape"),
    "spec.nested": ("tensors",),
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__.partition('.')[0]}.{home}"), name)
