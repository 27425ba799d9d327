"""How far answers may be off where a project says otherwise: `[tolerances]` of its settings file."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_flashinfer_perf.config.project_file import ProjectFile, ProjectFileError
from pytest_flashinfer_perf.names import unknown

if TYPE_CHECKING:
    from pytest_flashinfer_perf.checking.check import Tolerance

BOUNDS = ("rtol", "atol", "scale", "matched", "absolute")
BESIDE = ("output", "reason")


@dataclass(frozen=True)
class Override:
    """Some bounds of one output, of the routines and backends that a glob names."""

    glob: str
    bounds: Mapping[str, float]
    output: int = 0

    def names(self, routine: str, backend: str) -> bool:
        whole = self.glob if "/" in self.glob else f"{self.glob}/*"
        return fnmatch.fnmatchcase(f"{routine}/{backend}", whole)


def read(project: ProjectFile) -> tuple[Override, ...]:
    return tuple(_override(project, glob, said) for glob, said in project.section("tolerances").items())


def _override(project: ProjectFile, glob: str, said: Mapping[str, Any]) -> Override:
    where = f'{project.path}: [tolerances] "{glob}"'
    for name, value in said.items():
        if name not in (*BOUNDS, *BESIDE):
            raise ProjectFileError(f"{where}: {unknown(name, (*BOUNDS, *BESIDE))}")
        if name in BOUNDS and (isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0):
            raise ProjectFileError(f"{where}: {name} must be a number of at least 0, got {value!r}")
    output = said.get("output", 0)
    if not isinstance(output, int) or isinstance(output, bool) or output < 0:
        raise ProjectFileError(f"{where}: output must be which of its outputs, counted from 0, got {output!r}")
    bounds = {name: float(said[name]) for name in BOUNDS if name in said}
    if not bounds:
        raise ProjectFileError(f"{where}: says nothing, give it one of {', '.join(BOUNDS)}")
    return Override(glob, bounds, output)


def applied(
    overrides: Iterable[Override], routine: str, backend: str, own: tuple[Tolerance, ...]
) -> tuple[Tolerance, ...]:
    """The routine's own, with what the project says; of several that name it the last one wins."""
    settled = list(own)
    for override in overrides:
        if override.names(routine, backend) and override.output < len(settled):
            settled[override.output] = replace(settled[override.output], **override.bounds)
    return tuple(settled)


def of_nobody(overrides: Iterable[Override], known: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Globs that name none of these routines' backends."""
    for override in overrides:
        if not any(override.names(routine, backend) for routine, backends in known.items() for backend in backends):
            yield override.glob
