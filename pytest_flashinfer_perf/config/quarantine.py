"""Cases that a project knows to crash: `[quarantine]` of its settings file. They are never launched, always counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.config.project_file import ProjectFile, ProjectFileError
from pytest_flashinfer_perf.names import unknown

NEEDS = ("reason", "link")


@dataclass(frozen=True)
class Quarantined:
    """Cases by a glob over `routine/id`, or by flags that all of them have."""

    which: str
    reason: str
    link: str

    @property
    def sentence(self) -> str:
        return f"quarantined: {self.reason} ({self.link})"


def read(project: ProjectFile) -> tuple[Quarantined, ...]:
    return tuple(_entry(project, which, said) for which, said in project.section("quarantine").items())


def _entry(project: ProjectFile, which: str, said: Mapping[str, Any]) -> Quarantined:
    where = f'{project.path}: [quarantine] "{which}"'
    for name in said:
        if name not in NEEDS:
            raise ProjectFileError(f"{where}: {unknown(name, NEEDS)}")
    for name in NEEDS:
        if not isinstance(said.get(name), str) or not said[name].strip():
            raise ProjectFileError(f"{where}: needs a {name}, what is not launched must say why and where that is told")
    return Quarantined(which, said["reason"], said["link"])
