"""The times and cycles of a row; what cannot have been measured counts as unknown."""

from __future__ import annotations

from typing import Literal

from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.scatter import is_measured, median_error


def positive(value: float | None) -> float | None:
    return value if value is not None and is_measured(value) else None


def cycles(row: Row) -> float | None:
    return positive(row.clocks.cycles)


def gigahertz(row: Row) -> float | None:
    return positive(row.clocks.sm_ghz)


def median_uncertainty(row: Row) -> float:
    """The relative error of the median, from the samples of its own process."""
    relative_iqr = row.stats.iqr / row.median if positive(row.stats.iqr) and positive(row.median) else 0.0
    return median_error(relative_iqr, max(1, row.stats.rounds))


def of_placements(row: Row, figure: Literal["median", "cycles"]) -> tuple[float, ...]:
    """That figure of each placement; nothing where one lacks it."""
    values = [positive(getattr(placement, figure)) for placement in row.provenance.placements]
    return tuple(value for value in values if value) if None not in values else ()


def names(row: Row) -> tuple[str, ...]:
    """The names by which a glob of the settings file can select the row."""
    test = row.name.removeprefix("test_").replace("[", "/", 1).removesuffix("]")
    family = row.identity.family
    return (row.case, *((f"{family}/{row.case}", f"{family}/{test}") if family else ()), row.fullname)
