"""SM cycles by which cases are compared: those counted, or for a short call its time multiplied by the SM clock.

Cycles are counted between two stamps, whose own launches take 3.5 us: these hide what a short call changes by, and vary
more than it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate.runs import Row

LONG = 80_000  # cycles, of which the launches of the stamps are less than a tenth


@dataclass(frozen=True)
class Cycles:
    """A row's figure, and that of each of its placements."""

    figure: float
    placements: tuple[float, ...] = ()


def is_long(row: Row) -> bool:
    """As far as it is known: a row without cycles is compared in time."""
    return row.cycles is None or row.cycles >= LONG


def comparable(rows: Sequence[Row]) -> list[Cycles]:
    """The cycles of all rows, by the same method; nothing where one of them has none."""
    if any(row.cycles is None for row in rows):
        return []
    if all(map(is_long, rows)):
        return [Cycles(row.cycles, row.placed("cycles")) for row in rows if row.cycles]
    return [_at_clock(row, row.ghz * 1e9) for row in rows if row.ghz]


def _at_clock(row: Row, hertz: float) -> Cycles:
    return Cycles(row.median * hertz, tuple(median * hertz for median in row.placed("median")))


def figures(rows: Sequence[Row], domain: str) -> list[float]:
    """What processes are compared by: their medians, or their cycles."""
    return [row.median for row in rows] if domain == "time" else [one.figure for one in comparable(rows)]
