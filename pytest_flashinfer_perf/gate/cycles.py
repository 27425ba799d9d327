"""The SM cycles that cases are compared by: counted ones, or for short calls the time multiplied by the SM clock.

Cycles are counted between two stamps, whose own launches take 3.5 us: these hide what a short call changes by, and vary
more than it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate import figures
from pytest_flashinfer_perf.runs.row import Row

LONG = 80_000  # cycles, of which the launches of the stamps are less than a tenth


@dataclass(frozen=True)
class Cycles:
    """The cycles of a row, and of each of its placements."""

    figure: float
    placements: tuple[float, ...] = ()


def is_long(row: Row) -> bool:
    """As far as it is known: a row without cycles is compared in time."""
    cycles = figures.cycles(row)
    return cycles is None or cycles >= LONG


def comparable(rows: Sequence[Row]) -> list[Cycles]:
    """The cycles of all rows, by the same method; nothing where one of them has none."""
    known = [(row, cycles) for row in rows if (cycles := figures.cycles(row))]
    if len(known) < len(rows):
        return []
    if all(map(is_long, rows)):
        return [Cycles(cycles, figures.of_placements(row, "cycles")) for row, cycles in known]
    return [_at_clock(row, ghz * 1e9) for row in rows if (ghz := figures.gigahertz(row))]


def _at_clock(row: Row, hertz: float) -> Cycles:
    return Cycles(row.median * hertz, tuple(median * hertz for median in figures.of_placements(row, "median")))


def compared_by(rows: Sequence[Row], domain: str) -> list[float]:
    """What processes are compared by: their medians, or their cycles."""
    return [row.median for row in rows] if domain == "time" else [one.figure for one in comparable(rows)]
