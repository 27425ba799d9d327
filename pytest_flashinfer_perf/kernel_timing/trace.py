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
    kernel_runs: tuple[int, ...]
    kernel_s: tuple[float, ...]
    launches: int
    busy_s: float
    span_s: float


def summarise(activities: Sequence[Activity]) -> Trace | None:
    """Summarise a trace; None without activities, since a call without launches and a lost record look the same."""
    if not activities:
        return None
    ordered = sorted(activities, key=lambda a: a.start)
    span = max(a.end for a in ordered) - ordered[0].start
    times: dict[str, list[int]] = {}
    for one in ordered:
        times.setdefault(one.name, []).append(one.end - one.start)
    runs, took = tuple(map(len, times.values())), tuple(sum(each) / 1e9 for each in times.values())
    busy = union((a.start, a.end) for a in ordered) / 1e9
    return Trace(tuple(times), runs, took, len(ordered), busy, span / 1e9)


def trace(recorder: Recorder, work: Work, each: float) -> Trace | None:
    """Trace the last of up to CALLS calls, since the first one meets an idle device and is slower than timed calls."""
    steps = (work.chill, work) * stopping.fitting(CALLS, each)
    return summarise([recorder.of(step) for step in steps][-1])
