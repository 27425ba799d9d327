"""[models] of the settings file: limits for the time of a model's step and for its slowdown."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pytest_flashinfer_perf.config.project_file import ProjectFile
from pytest_flashinfer_perf.gate import thresholds

READERS = {"slower_step": thresholds.share, "max_step_us": thresholds.number}


@dataclass(frozen=True)
class StepThreshold:
    """The limits for the sum of a step; None for no limit."""

    slower_step: float | None = None
    max_step_us: float | None = None


@dataclass(frozen=True)
class StepThresholds(thresholds.Globs):
    """Globs of models' names."""

    def of(self, model: str) -> StepThreshold:
        return replace(StepThreshold(), **self.fields([model]))


def read(project: ProjectFile) -> StepThresholds:
    return StepThresholds(tuple(thresholds.entries(project, "models", READERS)))
