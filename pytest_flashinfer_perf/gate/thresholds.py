"""[thresholds] and [models] of the settings file: how much slower is too slow, and absolute limits."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_flashinfer_perf.config import project_file
from pytest_flashinfer_perf.config.project_file import ProjectFile, ProjectFileError
from pytest_flashinfer_perf.gate import figures
from pytest_flashinfer_perf.models.verdicts import StepLimits
from pytest_flashinfer_perf.names import unknown
from pytest_flashinfer_perf.runs.row import Row

EXAMPLE = '"attention/decode*" = { slower = "2%", floor_us = 0.5 }'
PERCENT = re.compile(r"(\d+(?:\.\d+)?) *%")

Readers = Mapping[str, Callable[[Any, str], Any]]


@dataclass(frozen=True)
class Rival:
    """Another backend of the same shape, and how many times its time this one may take."""

    backend: str
    ratio: float = 1.0


@dataclass(frozen=True)
class Threshold:
    """The limits of one case: a change counts if it exceeds both `slower`, a share of the time, and `floor_us`.

    Host time has no limit unless the settings file sets one.
    """

    slower: float = 0.02
    floor_us: float = 0.1
    min_tflops: float | None = None
    min_sol_pct: float | None = None
    max_vs_backend: Rival | None = None
    same_library: bool = False
    slower_host: float | None = None
    max_host_us: float | None = None
    max_plan_us: float | None = None
    max_launches: float | None = None
    no_sync: bool = False

    def in_log(self, median: float) -> float:
        """The least logarithm of a ratio that counts, of a case that takes `median` seconds."""
        return math.log1p(max(self.slower, self.floor_us * 1e-6 / median))


@dataclass(frozen=True)
class Globs:
    """The globs of a section in the file's order; a later one that also fits wins, field by field."""

    entries: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        """Those that are set for what has these names."""
        return {name: value for glob, entry in self.entries if _fits(glob, names) for name, value in entry.items()}

    def without_match(self, names: Sequence[str]) -> list[str]:
        """Globs that fit none of these names: mistyped, or not of this run."""
        return [glob for glob, _ in self.entries if not _fits(glob, names)]


@dataclass(frozen=True)
class Thresholds(Globs):
    def of(self, row: Row) -> Threshold:
        return replace(Threshold(), **self.fields(figures.names(row)))

    def idle(self, rows: Iterable[Row]) -> list[str]:
        return self.without_match([name for row in rows for name in figures.names(row)])


@dataclass(frozen=True)
class StepThresholds(Globs):
    """Globs of models' names."""

    def of(self, model: str) -> StepLimits:
        return replace(StepLimits(), **self.fields([model]))


def _fits(glob: str, names: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for name in names)


def read(project: ProjectFile) -> Thresholds:
    return Thresholds(tuple(entries(project, "thresholds", READERS)))


def of_steps(project: ProjectFile) -> StepThresholds:
    return StepThresholds(tuple(entries(project, "models", OF_STEPS)))


def entries(project: ProjectFile, section: str, readers: Readers) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each glob of a section with its fields, read by the reader of each."""
    for glob, entry in project.section(section).items():
        where = f"{project.path}: [{section}] {glob!r}"
        yield glob, {name: _reader(name, readers, where)(value, f"{where}: {name}") for name, value in entry.items()}


def _reader(name: str, readers: Readers, where: str) -> Callable[[Any, str], Any]:
    if name not in readers:
        raise ProjectFileError(f"{where}: {unknown(name, readers)}")
    return readers[name]


def share(value: Any, where: str) -> float:
    """With its sign, so that 2 and 0.02 cannot be taken for each other."""
    percent = PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if percent is None or float(percent[1]) == 0:
        raise ProjectFileError(f'{where}: must be a percentage above zero, as in "2%", got {value!r}')
    return float(percent[1]) / 100


def number(value: Any, where: str) -> float:
    return project_file.number(value, f"{where}:")


def _switch(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise ProjectFileError(f"{where}: must be true or false, got {value!r}")
    return value


def _rival(value: Any, where: str) -> Rival:
    if not isinstance(value, dict) or not isinstance(value.get("backend"), str) or set(value) - {"backend", "ratio"}:
        raise ProjectFileError(f'{where}: must be {{ backend = "fa2", ratio = 1.0 }}, got {value!r}')
    return Rival(value["backend"], number(value.get("ratio", 1.0), f"{where}.ratio"))


READERS: Readers = {
    "slower": share,
    "floor_us": number,
    "min_tflops": number,
    "min_sol_pct": number,
    "max_vs_backend": _rival,
    "same_library": _switch,
    "slower_host": share,
    "max_host_us": number,
    "max_plan_us": number,
    "max_launches": number,
    "no_sync": _switch,
}
OF_STEPS: Readers = {"slower_step": share, "max_step_us": number}
