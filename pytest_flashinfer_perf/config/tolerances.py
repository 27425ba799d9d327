"""`[tolerances]` of the settings file: bounds that replace those of routines."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_flashinfer_perf.config.project_file import ProjectFile, ProjectFileError, number
from pytest_flashinfer_perf.names import unknown

if TYPE_CHECKING:
    from pytest_flashinfer_perf.checking.check import Tolerance

BOUNDS = ("rtol", "atol", "scale", "matched", "absolute")
BESIDE = ("output", "reason")


@dataclass(frozen=True)
class Override:
    """Bounds for one output of the routines and backends that a glob matches."""

    glob: str
    bounds: Mapping[str, float]
    output: int = 0

    def names(self, routine: str, backend: str) -> bool:
        whole = self.glob if "/" in self.glob else f"{self.glob}/*"
        return fnmatch.fnmatchcase(f"{routine}/{backend}", whole)


def read(project: ProjectFile) -> tuple[Override, ...]:
    return tuple(_override(project, glob, entry) for glob, entry in project.section("tolerances").items())


def _override(project: ProjectFile, glob: str, entry: Mapping[str, Any]) -> Override:
    where = f'{project.path}: [tolerances] "{glob}"'
    for name in entry:
        if name not in (*BOUNDS, *BESIDE):
            raise ProjectFileError(f"{where}: {unknown(name, (*BOUNDS, *BESIDE))}")
    output = entry.get("output", 0)
    if not isinstance(output, int) or isinstance(output, bool) or output < 0:
        raise ProjectFileError(f"{where}: output must be the index of an output, counted from 0, got {output!r}")
    bounds = {name: number(entry[name], f"{where}: {name}") for name in BOUNDS if name in entry}
    if not bounds:
        raise ProjectFileError(f"{where}: has no bound, give it one of {', '.join(BOUNDS)}")
    return Override(glob, bounds, output)


def applied(
    overrides: Iterable[Override], routine: str, backend: str, own: tuple[Tolerance, ...]
) -> tuple[Tolerance, ...]:
    """The routine's own tolerances with the project's overrides; the last one that matches wins."""
    bounds = list(own)
    for override in overrides:
        if override.names(routine, backend) and override.output < len(bounds):
            bounds[override.output] = replace(bounds[override.output], **override.bounds)
    return tuple(bounds)


def without_match(overrides: Iterable[Override], known: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """The globs that match no backend of these routines."""
    for override in overrides:
        if not any(override.names(routine, backend) for routine, backends in known.items() for backend in backends):
            yield override.glob
