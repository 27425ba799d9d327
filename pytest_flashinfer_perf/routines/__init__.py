"""One file per routine. The package is scanned, so that a new file is a new routine."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from pytest_flashinfer_perf.errors import missing_libraries_named
from pytest_flashinfer_perf.spec.routine import AnyRoutine, Routine


def all_backends() -> set[str]:
    """The names of all backends, with their earlier names."""
    return {name for routine in all_routines().values() for name in (*routine.backends, *routine.aliases)}


@functools.cache
@missing_libraries_named()
def all_routines() -> dict[str, AnyRoutine]:
    """All routines by name: those of this package, then those of the extensions."""
    from pytest_flashinfer_perf import loading  # and pytest, which a script needs for nothing else

    routines: dict[str, AnyRoutine] = {}
    of_extensions = (one for of_one in reversed(loading.manager().hook.pytest_perf_routines()) for one in of_one)
    for routine in (*in_package(importlib.import_module(__name__)), *of_extensions):
        if routines.setdefault(routine.name, routine) is not routine:
            raise RuntimeError(f"two routines are called {routine.name}")
    return routines


def in_package(package: ModuleType) -> Iterator[AnyRoutine]:
    """The routines that its modules define."""
    for one in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(one.name)
        yield from (value for value in vars(module).values() if isinstance(value, Routine))
        if one.ispkg:
            yield from in_package(module)
