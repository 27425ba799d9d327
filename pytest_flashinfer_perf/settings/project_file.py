"""The project's one settings file: `flashinfer-perf.toml`, or `[tool.flashinfer-perf]` of pyproject.toml.

It is found and read here, with its sections `[tolerances]` and `[quarantine]`. What is judged by, `[thresholds]` and
the sections of extensions, is read by `gate/verdict.py`.
"""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_flashinfer_perf.errors import FlashinferPerfError, unknown
from pytest_flashinfer_perf.files import read_text
from pytest_flashinfer_perf.printing import safe

if TYPE_CHECKING:
    from pytest_flashinfer_perf.checking.check import Tolerance


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN = "flashinfer-perf.toml"
IN_PYPROJECT = ("tool", "flashinfer-perf")
LONGEST = 500  # characters of a sentence
QUARANTINED = "quarantined"  # begins the reason of a skip
SECTIONS = ("tolerances", "thresholds", "quarantine")


class ProjectFileError(FlashinferPerfError):
    """The settings file is not valid; the message names file and field, on one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(safe(sentence))


@dataclass(frozen=True)
class ProjectFile:
    """A project's settings; empty if there is no file."""

    path: Path | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)

    def where(self, section: str, glob: str) -> str:
        """The place of an entry, for a message."""
        return f"{self.path}: [{section}] {glob!r}"

    def verify(self, beside: Iterable[str]) -> None:
        """Raise for a section that is neither one of these, which extensions declare, nor our own."""
        sections = (*SECTIONS, *beside)
        for name in self.sections:
            if name not in sections:
                raise ProjectFileError(f"{self.path}: sections: {unknown(name, sections)}")

    def section(self, name: str, fields: Collection[str]) -> Mapping[str, Any]:
        """The entries of a section, each a table of some of these fields, by what they match."""
        entries = self.sections.get(name, {})
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise ProjectFileError(f'{self.path}: [{name}] must hold lines like "glob" = {{ name = value }}')
        for glob, entry in entries.items():
            unknown_field = next((one for one in entry if one not in fields), None)
            if unknown_field is not None:
                raise ProjectFileError(f"{self.where(name, glob)}: {unknown(unknown_field, fields)}")
        return dict(entries)


def number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise ProjectFileError(f"{where} must be a number of at least 0, got {value!r}"[:LONGEST])
    return float(value)


def find(folder: Path, named: str | None = None) -> ProjectFile:
    """Read the named file, or the one in the folder if none is named."""
    if named is not None:
        return read(folder / named)
    own, shared = folder / OWN, folder / "pyproject.toml"
    if own.is_file():
        return read(own)
    return read(shared) if shared.is_file() else ProjectFile()


def read(path: Path) -> ProjectFile:
    try:
        document = tomllib.loads(read_text(path))
    except RecursionError as error:
        raise ProjectFileError(f"{path}: it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise ProjectFileError(f"{path}: {error}") from error
    sections: Any = document
    for table in IN_PYPROJECT if path.name == "pyproject.toml" else ():
        sections = sections.get(table, {})
        if not isinstance(sections, dict):
            raise ProjectFileError(f"{path}: {table} must be a table, got {sections!r}")
    return ProjectFile(path, sections)


# `[tolerances]` of the settings file: bounds that replace those of routines.

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


def read_tolerances(project: ProjectFile) -> tuple[Override, ...]:
    overrides = []
    for glob, entry in project.section("tolerances", (*BOUNDS, *BESIDE)).items():
        where = project.where("tolerances", glob)
        output = entry.get("output", 0)
        if not isinstance(output, int) or isinstance(output, bool) or output < 0:
            raise ProjectFileError(f"{where}: output must be the index of an output, counted from 0, got {output!r}")
        bounds = {name: number(entry[name], f"{where}: {name}") for name in BOUNDS if name in entry}
        if not bounds:
            raise ProjectFileError(f"{where}: has no bound, give it one of {', '.join(BOUNDS)}")
        overrides.append(Override(glob, bounds, output))
    return tuple(overrides)


def applied(
    overrides: Iterable[Override], routine: str, backend: str, own: tuple[Tolerance, ...]
) -> tuple[Tolerance, ...]:
    """The routine's own tolerances with the project's overrides; the last one that matches wins."""
    bounds = list(own)
    for override in overrides:
        if override.names(routine, backend) and override.output < len(bounds):
            bounds[override.output] = replace(bounds[override.output], **override.bounds)
    return tuple(bounds)


def without_match(overrides: Iterable[Override], backends_of: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """The globs that match no backend of these routines."""
    for override in overrides:
        if not any(
            override.names(routine, backend) for routine, backends in backends_of.items() for backend in backends
        ):
            yield override.glob


# `[quarantine]` of the settings file: what is known to crash, which is never launched and always counted.

NEEDS = ("reason", "link")


@dataclass(frozen=True)
class Quarantined:
    """Cases selected by a glob over `routine/id` or by flags, or tests by a glob over their ids; with the reason."""

    which: str
    reason: str
    link: str
    date: str = ""

    @property
    def names_tests(self) -> bool:
        return "::" in self.which

    def holds_test(self, test: str) -> bool:
        """An id is also taken as it is: its brackets are those of a glob too."""
        return self.names_tests and (test == self.which or fnmatch.fnmatchcase(test, self.which))

    @property
    def sentence(self) -> str:
        since = f" since {self.date}" if self.date else ""
        return f"{QUARANTINED}{since}: {self.reason} ({self.link})"


def read_quarantine(project: ProjectFile) -> tuple[Quarantined, ...]:
    entries = []
    for which, entry in project.section("quarantine", (*NEEDS, "date")).items():
        where = project.where("quarantine", which)
        for name in NEEDS:
            if not isinstance(entry.get(name), str) or not entry[name].strip():
                sentence = f"needs a {name}: give the reason for the quarantine and a link to the issue"
                raise ProjectFileError(f"{where}: {sentence}")
        entries.append(Quarantined(which, entry["reason"], entry["link"], _day(entry.get("date"), where)))
    return tuple(entries)


def _day(value: Any, where: str) -> str:
    """A date of TOML, or the same as text; empty where none is given."""
    try:
        return "" if value is None else date.fromisoformat(str(value)).isoformat()
    except ValueError as error:
        raise ProjectFileError(f"{where}: date must be a day as 2026-11-28, got {value!r}"[:LONGEST]) from error
