"""What was counted of a call on the host, or why nothing was."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_flashinfer_perf.runs.host_time import Line


@dataclass(frozen=True)
class Counts:
    """Counts by the names of the fields of HostTime, the lines of Python behind them, and the seconds of counting."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()
    why_not: str = ""
    seconds: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        why_not = "; ".join(filter(None, (self.why_not, other.why_not)))
        fields, lines = {**self.fields, **other.fields}, (*self.lines, *other.lines)
        return Counts(fields, lines, why_not, self.seconds + other.seconds)


def counted(instrument: str, count: Callable[[], Counts]) -> Counts:
    """Count; an error becomes the reason why nothing was counted, and does not fail the case."""
    start = time.perf_counter()
    try:
        counts = count()
    except Exception as error:  # noqa: BLE001 - whatever stops it is the reason
        counts = Counts(why_not=f"{instrument} counts nothing of the host: {type(error).__name__}: {error}")
    return replace(counts, seconds=time.perf_counter() - start)
