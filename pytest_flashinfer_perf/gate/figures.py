"""The times and cycles of a row; what cannot have been measured counts as unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.scatter import is_measured, median_error


def positive(value: float | None) -> float | None:
    return value if value is not None and is_measured(value) else None


def cycles_of(row: Row) -> float | None:
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


# The SM cycles that cases are compared by: counted ones, or for short calls the time multiplied by the SM clock.

LONG = 80_000  # cycles, of which the launches of the stamps are less than a tenth


@dataclass(frozen=True)
class Cycles:
    """The cycles of a row, and of each of its placements."""

    figure: float
    placements: tuple[float, ...] = ()


def is_long(row: Row) -> bool:
    """As far as it is known: a row without cycles is compared in time."""
    cycles = cycles_of(row)
    return cycles is None or cycles >= LONG


def comparable(rows: Sequence[Row]) -> list[Cycles]:
    """The cycles of all rows, by the same method; nothing where one of them has none."""
    known = [(row, cycles) for row in rows if (cycles := cycles_of(row))]
    if len(known) < len(rows):
        return []
    if all(map(is_long, rows)):
        return [Cycles(cycles, of_placements(row, "cycles")) for row, cycles in known]
    return [_at_clock(row, ghz * 1e9) for row in rows if (ghz := gigahertz(row))]


def _at_clock(row: Row, hertz: float) -> Cycles:
    return Cycles(row.median * hertz, tuple(median * hertz for median in of_placements(row, "median")))


def compared_by(rows: Sequence[Row], domain: str) -> list[float]:
    """What processes are compared by: their medians, or their cycles."""
    return [row.median for row in rows] if domain == "time" else [one.figure for one in comparable(rows)]
