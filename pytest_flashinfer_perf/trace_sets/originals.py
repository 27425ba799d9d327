"""Remember the functions that read time before code of a data set is imported, and detect replacements."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.machine.devices import Device

ON_A_GPU = ("flashinfer.testing", "cupti.cupti")
PACKAGES = ("flashinfer.testing", "cupti", "pytest_flashinfer_perf.timing", "pytest_flashinfer_perf.machine")


class ReplacedError(FlashinferPerfError):
    """The code of a data set replaced a function that reads time."""


class Originals:
    def __init__(self) -> None:
        self._known = [(o, name, value) for o in _owners() for name, value in vars(o).items() if _is_code(value)]

    def restore(self) -> None:
        for owner, name, value in self._replaced():
            setattr(owner, name, value)

    def verify(self) -> None:
        names = [f"{owner.__name__}.{name}" for owner, name, _ in self._replaced()]
        self.restore()
        if names:
            raise ReplacedError(f"replaces {', '.join(names)}, with which it is timed, so that its time is unknown")

    def _replaced(self) -> list[tuple[Any, str, Any]]:
        return [(o, name, value) for o, name, value in self._known if vars(o).get(name) is not value]


def _is_code(value: object) -> bool:
    return callable(value) or isinstance(value, ModuleType)


def _owners() -> Iterator[Any]:
    """Modules that read clocks or wait for a GPU, and the classes that they define."""
    inside = [module for name, module in sys.modules.items() if name.startswith(PACKAGES)]
    yield from (time, torch.cuda, torch.cuda.Event, torch.cuda.Stream, *inside)
    for module in inside:
        yield from (c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__)


@functools.cache
def originals(device: Device) -> Originals:
    """The original functions; the first call in a process must precede the import of other people's code."""
    for name in ON_A_GPU if device.is_gpu else ():
        with suppress(ImportError):
            import_module(name)
    return Originals()
