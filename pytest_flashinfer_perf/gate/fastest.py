"""The backends that share the first place: those that are not significantly slower than the fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_flashinfer_perf.gate import effects, figures, student
from pytest_flashinfer_perf.gate.effects import RISK
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.scatter import relative_error


def fastest(rows: Sequence[Row]) -> list[Row]:
    """The least median first; of sound rows, and where there is another row to be faster than."""
    sound = [row for row in rows if row.is_sound and row.median > 0]
    if len(rows) < 2 or not sound:
        return []
    first = min(sound, key=lambda row: row.median)
    return [first, *(row for row in sound if row is not first and not is_slower(row, first))]


def is_slower(row: Row, first: Row) -> bool:
    """With 95 % confidence, judged as the gate judges two processes: in time or cycles, by the noise that it assumes.

    Where the samples of the two scatter by more than that noise, their scatter counts.
    """
    [effect] = effects.effects(effects.replicates([first], [row], paired=True, whole=True)[:1])
    own = math.hypot(_error(first, effect.seen.domain), _error(row, effect.seen.domain))
    return student.t_tail_probability(effect.change / max(effect.error, own), effect.noise.df) < RISK


def _error(row: Row, domain: str) -> float:
    """The relative standard error of a median."""
    is_counted = domain == "cycles" and figures.is_long(row)
    samples = (row.clocks.cycles_per_call or ()) if is_counted else row.stats.data
    return relative_error(samples, row.spread, row.stats.rounds)
