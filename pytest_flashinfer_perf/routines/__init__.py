"""One file per routine. The package is scanned, so that a new file is a new routine.

`derived` has those that are made of FlashInfer's own declarations of its APIs, which is asked only when one is named.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from pytest_flashinfer_perf.errors import missing_libraries_named
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Routine

DERIVED = f"{__name__}.derived"


def all_backends() -> set[str]:
    """The names of all backends, with their earlier names."""
    return {name for routine in all_routines().values() for name in (*routine.backends, *routine.aliases)}


@functools.cache
@missing_libraries_named()
def all_routines() -> dict[str, AnyRoutine]:
    found: dict[str, AnyRoutine] = {}
    for module in _modules(importlib.import_module(__name__)):
        for routine in vars(module).values():
            if isinstance(routine, Routine) and found.setdefault(routine.name, routine) is not routine:
                raise RuntimeError(f"two routines are called {routine.name}; the second is in {module.__name__}")
    return found


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    """All modules of a package; `derived` is not even imported."""
    for one in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if one.name != DERIVED:
            module = importlib.import_module(one.name)
            yield module
            if one.ispkg:
                yield from _modules(module)
