"""Count allocations of a call from torch's GPU allocator, by line of Python.

The allocator's counts are read before and after a call. If there were allocations, one more call is made, in which the
counts are read at every line of Python. The allocator's own history has the lines too, but takes a second to start.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from pytest_flashinfer_perf.runs.host_time import ALLOCATION, Line
from pytest_flashinfer_perf.timing import python_lines
from pytest_flashinfer_perf.timing.counts import Counts
from pytest_flashinfer_perf.timing.instruments import Call
from pytest_flashinfer_perf.timing.python_lines import Place

COUNTS, BYTES = "allocation", "requested_bytes"


def of(call: Call, device: torch.device) -> Counts:
    """Allocations of one call."""

    def totals() -> tuple[int, int]:
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        return stats[COUNTS]["all"]["allocated"], stats[BYTES]["all"]["allocated"]

    before = totals()
    call()
    count, size = (now - was for now, was in zip(totals(), before, strict=True))
    lines = Watch(totals).lines(call) if count else ()
    return Counts({"allocations": count, "allocated_bytes": size}, tuple(lines))


@dataclass
class Watch:
    """Attribute allocations to the line of Python that runs meanwhile, other than lines of torch or this package."""

    totals: Callable[[], tuple[int, int]]
    _place: Place | None = None
    _seen: tuple[int, int] = (0, 0)
    _found: dict[Place | None, tuple[int, int]] = field(default_factory=dict)

    def lines(self, call: Call) -> list[Line]:
        self._seen, other = self.totals(), sys.gettrace()
        sys.settrace(self._traced)
        try:
            call()
        finally:
            sys.settrace(other)
        self._attribute()
        return [
            Line(ALLOCATION, str(place) if place else None, count, size) for place, (count, size) in self._found.items()
        ]

    def _traced(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Called when a function starts, when a line starts, and when a function returns to its caller's line."""
        if not python_lines.is_callers(frame.f_code.co_filename):
            return None
        self._attribute()
        self._place = python_lines.leading_to(frame.f_back if event == "return" else frame)
        return self._traced

    def _attribute(self) -> None:
        now = self.totals()
        count, size = (new - old for new, old in zip(now, self._seen, strict=True))
        if count:
            known = self._found.get(self._place, (0, 0))
            self._found[self._place] = known[0] + count, known[1] + size
        self._seen = now
