"""Two speeds of the same code: processes that lie on two levels, and not by what changed.

A CPU's product of matrices may take half as long again in one process of seven, for all its calls. Where the processes
of both sides together lie on two levels, each of them narrow, and those of one side on both, the code explains neither.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise

from pytest_flashinfer_perf.gate.effects import Domain
from pytest_flashinfer_perf.rows.formatting import duration

APART = 3.0  # how far levels lie from each other, in widths of the wider one


def two(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The lower and the higher level, where there are two and one side has processes on both."""
    sides = [list(map(math.log, side)) for side in (before, after)]
    every = sorted(value for side in sides for value in side)
    gap, last = max((high - low, low) for low, high in pairwise(every))
    lower, higher = [one for one in every if one <= last], [one for one in every if one > last]
    is_on_both = any(min(side) <= last < max(side) for side in sides)
    if not is_on_both or gap < APART * max(level[-1] - level[0] for level in (lower, higher)):
        return None
    return math.exp(statistics.fmean(lower)), math.exp(statistics.fmean(higher))


def sentence(domain: str, levels: tuple[float, float]) -> str:
    low, high = (f"{level:,.0f} cycles" if domain == Domain.CYCLES else duration(level) for level in levels)
    return f"two speeds: {low} and {high}"
