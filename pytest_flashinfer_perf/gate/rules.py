"""The rules of a comparison, as the settings file and the extensions have them.

Whoever reads them passes the hooks of its session, or those of a command.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_flashinfer_perf.gate import thresholds
from pytest_flashinfer_perf.gate.thresholds import Globs
from pytest_flashinfer_perf.gate.verdict import Rules
from pytest_flashinfer_perf.settings.project_file import ProjectFile


def added(hook: Any) -> Rules:
    """What extensions judge by, without any settings."""
    quantities, sums = hook.pytest_perf_quantities(), hook.pytest_perf_sums()
    return Rules(
        quantities=tuple(one for of_one in reversed(quantities) for one in of_one),
        sums=tuple(one for of_one in reversed(sums) for one in of_one),
    )


def read(project: ProjectFile, hook: Any) -> Rules:
    """All limits of the settings file; raises ProjectFileError for one that nobody declares."""
    rules = added(hook)
    sections = {name: kind for one in rules.sums for name, kind in one.sections.items()}
    project.verify(sections)
    return replace(
        rules,
        thresholds=thresholds.read(project, [one.limits for one in rules.quantities]),
        sections={name: Globs(tuple(thresholds.entries(project, name, [kind]))) for name, kind in sections.items()},
    )
