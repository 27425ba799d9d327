"""Measure FlashInfer's GPU kernels, and your own, from inside pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_flashinfer_perf.measurement import Measurement, measure
    from pytest_flashinfer_perf.settings import Measuring

__all__ = ["Measurement", "Measuring", "measure"]

# Loaded when they are first used: importing the plugin must not import torch.
_HOMES = {"Measurement": "measurement", "measure": "measurement", "Measuring": "settings"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
