"""Measure the two sides of a comparison in turns, each time in a new process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pytest_flashinfer_perf.rows.run_file import Run

Side = TypeVar("Side", bound=str)


@dataclass
class Pairs(Generic[Side]):
    """Every second pair begins with the second side, so that a drift over time favours neither.

    `measure` is given the side, the number of the pair, and the cases to measure, None for all.
    """

    sides: tuple[Side, Side]
    measure: Callable[[Side, int, frozenset[str] | None], Run]
    seconds: list[float] = field(default_factory=list)  # that each pair took

    def __call__(self, nth: int, cases: frozenset[str] | None = None) -> tuple[Run, Run]:
        """The n-th pair, in the order of the sides."""
        start = time.monotonic()
        first, second = self.sides
        order = (first, second) if nth % 2 == 0 else (second, first)
        found = {side: self.measure(side, nth, cases) for side in order}
        self.seconds.append(time.monotonic() - start)
        return found[first], found[second]
