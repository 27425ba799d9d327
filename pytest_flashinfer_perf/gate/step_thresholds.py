"""[models] of the settings file: limits for the time of a model's step and for its slowdown."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_flashinfer_perf.config.project_file import ProjectFile, ProjectFileError
from pytest_flashinfer_perf.gate import thresholds
from pytest_flashinfer_perf.names import unknown

READERS = {"slower_step": thresholds.share, "max_step_us": thresholds.number}


@dataclass(frozen=True)
class StepThreshold:
    """The limits for the sum of a step; None for no limit."""

    slower_step: float | None = None
    max_step_us: float | None = None


@dataclass(frozen=True)
class StepThresholds:
    """Globs of models' names in the file's order; a later one that also fits wins, field by field."""

    entries: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def of(self, model: str) -> StepThreshold:
        fitting = (entry for glob, entry in self.entries if fnmatch.fnmatchcase(model, glob))
        fields = {name: value for entry in fitting for name, value in entry.items()}
        return replace(StepThreshold(), **fields)

    def idle(self, models: Iterable[str]) -> list[str]:
        known = list(models)
        return [glob for glob, _ in self.entries if not fnmatch.filter(known, glob)]


def read(project: ProjectFile) -> StepThresholds:
    entries = project.section("models").items()
    return StepThresholds(tuple((glob, _entry(entry, f"{project.path}: [models] {glob!r}")) for glob, entry in entries))


def _entry(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    strange = [name for name in entry if name not in READERS]
    if strange:
        raise ProjectFileError(f"{where}: {unknown(strange[0], READERS)}")
    return {name: READERS[name](value, f"{where}: {name}") for name, value in entry.items()}
