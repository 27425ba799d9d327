"""Cases that a project knows to crash: `[quarantine]` of its settings file. They are never launched, always counted."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_flashinfer_perf.config.project_file import ProjectFile, ProjectFileError

if TYPE_CHECKING:
    from pytest_flashinfer_perf.spec.case import Case, Partly
    from pytest_flashinfer_perf.spec.routine import AnyRoutine

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

    def holds(self, case: Case) -> bool:
        if not self.which.startswith("-"):
            return fnmatch.fnmatchcase(f"{case.routine.name}/{case.id}", self.which)
        said = _partly(self.which, case.routine)
        return said is not None and said.holds(case)

    def names_nobody(self, routines: Iterable[AnyRoutine]) -> bool:
        """A glob whose routine is none of these; flags that cannot be understood raise ParamError."""
        if self.which.startswith("-"):
            return all(_partly(self.which, routine) is None for routine in routines)
        return not any(fnmatch.fnmatchcase(r.name, self.which.partition("/")[0]) for r in routines)


def _partly(line: str, routine: AnyRoutine) -> Partly | None:
    from pytest_flashinfer_perf.routines import all_routines
    from pytest_flashinfer_perf.spec.case import partly

    return partly(line, routine, {**all_routines(), routine.name: routine})


def read(project: ProjectFile) -> tuple[Quarantined, ...]:
    return tuple(_entry(project, which, said) for which, said in project.section("quarantine").items())


def _entry(project: ProjectFile, which: str, said: Mapping[str, Any]) -> Quarantined:
    where = f'{project.path}: [quarantine] "{which}"'
    for name in said:
        if name not in NEEDS:
            raise ProjectFileError(f"{where}: unknown name {name!r}, known are {', '.join(NEEDS)}")
    for name in NEEDS:
        if not isinstance(said.get(name), str) or not said[name].strip():
            raise ProjectFileError(f"{where}: needs a {name}, what is not launched must say why and where that is told")
    return Quarantined(which, said["reason"], said["link"])


def found(entries: Iterable[Quarantined], case: Case) -> Quarantined | None:
    return next((entry for entry in entries if entry.holds(case)), None)
