"""The project's one settings file: `flashinfer-perf.toml`, or `[tool.flashinfer-perf]` of pyproject.toml."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import read_text
from pytest_flashinfer_perf.names import unknown
from pytest_flashinfer_perf.printing import safe

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN = "flashinfer-perf.toml"
IN_PYPROJECT = ("tool", "flashinfer-perf")
LONGEST = 500  # characters of a sentence
SECTIONS = ("tolerances", "thresholds", "models", "quarantine")


class ProjectFileError(FlashinferPerfError):
    """The settings file is not valid; the message names file and field, on one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(safe(sentence))


@dataclass(frozen=True)
class ProjectFile:
    """A project's settings; empty if there is no file."""

    path: Path | None = None
    sections: Mapping[str, Any] = field(default_factory=dict)

    def section(self, name: str) -> Mapping[str, Any]:
        """The entries of a section, each a table, by what they match."""
        entries = self.sections.get(name, {})
        if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
            raise ProjectFileError(f'{self.path}: [{name}] must hold lines like "glob" = {{ name = value }}')
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
    for name in sections:
        if name not in SECTIONS:
            raise ProjectFileError(f"{path}: sections: {unknown(name, SECTIONS)}")
    return ProjectFile(path, sections)
