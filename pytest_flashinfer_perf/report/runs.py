"""The runs that a report shows, read from their files."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from pytest_flashinfer_perf.runs import run_file
from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.run_file import Run, RunError
from pytest_flashinfer_perf.runs.scatter import is_measured


def read(paths: Iterable[Path]) -> list[Run]:
    """Oldest first, whatever their order."""
    return sorted((_with_valid_times(run_file.read(path)) for path in paths), key=lambda run: run.when)


def _with_valid_times(run: Run) -> Run:
    for row in run.ours:
        if not _has_valid_times(row):
            raise RunError(f"{run.source}: {row.fullname} has an invalid time: measure it again")
    return run


def _has_valid_times(row: Row) -> bool:
    times = (row.stats.median, row.stats.mean)
    return all(map(is_measured, times)) and all(map(math.isfinite, row.stats.data))
