"""`[quarantine]` of the settings file: cases known to crash, which are never launched and always counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.config.project_file import ProjectFile, ProjectFileError
from pytest_flashinfer_perf.names import unknown

NEEDS = ("reason", "link")


@dataclass(frozen=True)
class Quarantined:
    """Cases selected by a glob over `routine/id` or by flags, with the reason and a link."""

    which: str
    reason: str
    link: str

    @property
    def sentence(self) -> str:
        return f"quarantined: {self.reason} ({self.link})"


def read(project: ProjectFile) -> tuple[Quarantined, ...]:
    return tuple(_entry(project, which, entry) for which, entry in project.section("quarantine").items())


def _entry(project: ProjectFile, which: str, entry: Mapping[str, Any]) -> Quarantined:
    where = f'{project.path}: [quarantine] "{which}"'
    for name in entry:
        if name not in NEEDS:
            raise ProjectFileError(f"{where}: {unknown(name, NEEDS)}")
    for name in NEEDS:
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ProjectFileError(
                f"{where}: needs a {name}: give the reason for the quarantine and a link to the issue"
            )
    return Quarantined(which, entry["reason"], entry["link"])
