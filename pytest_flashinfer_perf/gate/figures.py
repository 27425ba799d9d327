"""What a row says of a case: how long its kernels ran, its gaps, its SM cycles, the time between stamps.

Rows by another instrument lack some of it, and only what all rows of a comparison have can be compared. So most
functions take the rows of both sides. What cannot have been measured counts as unknown.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.scatter import is_measured, median_error

LONG = 80_000  # cycles, of which the launches of the stamps are less than a tenth
MEMORY_WORKS = 60  # per cent of the memory's roof: from there on memory sets the pace, below it the SMs do


def positive(value: float | None) -> float | None:
    return value if value is not None and is_measured(value) else None


def median_uncertainty(row: Row) -> float:
    """The relative error of the median, from the samples of its own process."""
    relative_iqr = row.stats.iqr / row.median if positive(row.stats.iqr) and positive(row.median) else 0.0
    return median_error(relative_iqr, max(1, row.stats.rounds))


def scatter_of_calls(row: Row) -> float:
    """The relative error of the time in which kernels ran, were it measured by one of the calls; 0 if unknown."""
    calls = row.timed.busy_per_call or ()
    low, middle, high = statistics.quantiles(calls, n=4) if len(calls) > 1 and all(map(positive, calls)) else (1.0,) * 3
    return median_error((high - low) / middle, 1)


def placement_figures(row: Row, figure: Literal["median", "busy", "cycles"]) -> tuple[float, ...]:
    """Give that figure of each placement; none where one lacks it."""
    values = [positive(getattr(placement, figure)) for placement in row.provenance.placements]
    return tuple(value for value in values if value) if None not in values else ()


@dataclass(frozen=True)
class RowFigure:
    """A figure of a row, and that of each of its placements."""

    value: float
    placements: tuple[float, ...] = ()

    @property
    def lower_quartile(self) -> float:
        """The lower quartile of its placements; the only value of a row without them."""
        return sorted(self.placements)[(len(self.placements) - 1) // 4] if self.placements else self.value

    def times(self, factor: float) -> RowFigure:
        return RowFigure(self.value * factor, tuple(value * factor for value in self.placements))

    def plus(self, summand: float) -> RowFigure:
        return RowFigure(self.value + summand, tuple(value + summand for value in self.placements))


def are_split(rows: Sequence[Row]) -> bool:
    """Whether it is known of all rows how long their kernels ran."""
    return all(positive(row.timed.busy) for row in rows)


def kernel_times(rows: Sequence[Row], *, whole: bool = False) -> list[RowFigure]:
    """Give how long the kernels ran, if all rows have it; else, and as a `whole`, how long the calls took."""
    if are_split(rows) and not whole:
        return [RowFigure(row.timed.busy or 0.0, placement_figures(row, "busy")) for row in rows]
    return [RowFigure(row.median, placement_figures(row, "median")) for row in rows]


def gaps(rows: Sequence[Row]) -> list[RowFigure]:
    """The gaps of each row, in which no kernel ran; its rows are split into busy time and gaps."""
    return [
        RowFigure(
            row.timed.gap or 0.0, tuple((one.median or 0.0) - (one.busy or 0.0) for one in row.provenance.placements)
        )
        for row in rows
    ]


def cycles(row: Row) -> float | None:
    """Give the cycles that were counted, unless calls waited for the host meanwhile."""
    return None if row.clocks.queued is False else positive(row.clocks.cycles)


def is_long(row: Row) -> bool:
    """Whether stamps disturb it little; a row without cycles counts as long, and is compared in time."""
    counted = cycles(row)
    return counted is None or counted >= LONG


def cycles_alike(rows: Sequence[Row], *, whole: bool = False) -> list[RowFigure]:
    """Give the cycles of all rows by one method: counted, or for short calls the time multiplied by the SM clock.

    The list is empty where a row has none.
    """
    counted = [one for row in rows if (one := cycles(row))]
    hertz = [1e9 * ghz for row in rows if (ghz := positive(row.clocks.sm_ghz))]
    if len(counted) < len(rows):
        return []
    if all(map(is_long, rows)):
        return [RowFigure(one, placement_figures(row, "cycles")) for row, one in zip(rows, counted, strict=True)]
    times = kernel_times(rows, whole=whole)
    return [one.times(each) for one, each in zip(times, hertz, strict=True)] if len(hertz) == len(rows) else []


def gaps_plus_first_kernel_time(rows: Sequence[Row]) -> list[RowFigure]:
    """Add the kernels' time of the first row to the gaps of each: how long calls take if only gaps differ."""
    return [gap.plus(rows[0].timed.busy or 0.0) for gap in gaps(rows)]


def between_stamps(row: Row) -> RowFigure | None:
    ghz, counted, queued = positive(row.clocks.sm_ghz), cycles(row), row.clocks.queued
    if not (ghz and counted and queued):
        return None
    return RowFigure(counted, placement_figures(row, "cycles")).times(1e-9 / ghz)


def paced_by_sms(row: Row) -> bool:
    """Whether its cycles are the same whatever the clock does, and its time is not."""
    roof_percent = positive(row.throughput.sol_pct)
    far_from_memorys_roof = roof_percent is not None and roof_percent < MEMORY_WORKS
    return row.throughput.bound == "compute" or (far_from_memorys_roof and is_long(row))
