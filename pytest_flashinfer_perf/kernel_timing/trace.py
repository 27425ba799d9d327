"""Trace a call: an untimed call under CUPTI gives kernel names, launches, busy time and span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.kernel_timing import stopping
from pytest_flashinfer_perf.kernel_timing.cupti import Activity, Recorder, union
from pytest_flashinfer_perf.kernel_timing.instruments import Work

CALLS = 3


@dataclass(frozen=True)
class Trace:
    kernels: tuple[str, ...]
    launches: int
    busy_s: float
    span_s: float


def summarise(activities: Sequence[Activity]) -> Trace | None:
    """Summarise a trace; None without activities, since a call without launches and a lost record look the same."""
    if not activities:
        return None
    ordered = sorted(activities, key=lambda a: a.start)
    span = max(a.end for a in ordered) - ordered[0].start
    names = tuple(dict.fromkeys(a.name for a in ordered))
    return Trace(names, len(ordered), union((a.start, a.end) for a in ordered) / 1e9, span / 1e9)


def trace(recorder: Recorder, work: Work, each: float) -> Trace | None:
    """Trace the last of up to CALLS calls, since the first one meets an idle device and is slower than timed calls."""
    steps = (work.chill, work) * stopping.fitting(CALLS, each)
    return summarise([recorder.of(step) for step in steps][-1])
