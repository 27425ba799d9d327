"""The backends that share the first place: those not significantly slower than the fastest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from pytest_flashinfer_perf.gate import cycles, effects, tails
from pytest_flashinfer_perf.gate.effects import RISK
from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.scatter import median_error

UNSOUND = ("invalid", "wrong")  # statuses of rows that never win


def fastest(rows: Sequence[Row]) -> list[Row]:
    """The least median first; of sound rows, and where there is another row to be faster than."""
    sound = [row for row in rows if row.status not in UNSOUND and row.median > 0]
    if len(rows) < 2 or not sound:
        return []
    first = min(sound, key=lambda row: row.median)
    return [first, *(row for row in sound if row is not first and not is_slower(row, first))]


def is_slower(row: Row, first: Row) -> bool:
    """With 95 % confidence, judged as the gate judges two processes: in time or cycles, by the noise that it assumes.

    Where the samples of the two scatter by more than that noise, their scatter counts.
    """
    [effect] = effects.effects(effects.replicates([first], [row], paired=True)[:1])
    own = math.hypot(_error(first, effect.seen.domain), _error(row, effect.seen.domain))
    return effect.change > tails.beyond(RISK, effect.noise.df) * max(effect.error, own)


def _error(row: Row, domain: str) -> float:
    """The relative standard error of a median, from the middle half of its samples; without samples from the spread."""
    counted = domain == "cycles" and cycles.is_long(row)
    median, samples = (row.clocks.cycles, row.clocks.cycles_per_call) if counted else (row.median, row.stats.data)
    if not median or not samples or len(samples) < 2:
        return (row.spread or 0.0) / math.sqrt(max(1, row.stats.rounds))
    lower, _, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return median_error((upper - lower) / median, len(samples))
