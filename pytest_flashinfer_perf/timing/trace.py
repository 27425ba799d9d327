"""Trace a call: one more, untimed call under CUPTI gives kernel names, launches, busy time and span."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pytest_flashinfer_perf.timing import stopping
from pytest_flashinfer_perf.timing.instruments import Work

BUFFER_BYTES = 1 << 20
CALLS = 3


@dataclass(frozen=True)
class Activity:
    """A kernel, copy or fill that ran on the device, in nanoseconds."""

    name: str
    start: int
    end: int


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
    return Trace(names, len(ordered), _busy(ordered) / 1e9, span / 1e9)


def _busy(ordered: Iterable[Activity]) -> int:
    """Nanoseconds during which at least one activity ran."""
    total, until = 0, 0
    for activity in ordered:
        total += max(0, activity.end - max(activity.start, until))
        until = max(until, activity.end)
    return total


def trace(work: Work, each: float) -> Trace | None:
    """Trace the last of a few calls; the first one meets an idle device and is slower than timed calls."""
    from cupti import cupti

    kinds = cupti.ActivityKind
    device_work = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
    enabled = (kinds.RUNTIME, kinds.DRIVER, *device_work)  # as bench_gpu_time does, so that both see the same
    seen: list[Activity] = []
    calls = stopping.fitting(CALLS, each)

    def completed(records: Iterable[Any]) -> None:
        seen.extend(_activity(r, kinds) for r in records if r.kind in device_work)

    torch.cuda.synchronize()
    for kind in enabled:
        cupti.activity_enable(kind)
    cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), completed)
    try:
        for step in (work.chill, work) * calls:
            seen.clear()
            step()
            torch.cuda.synchronize()
            cupti.activity_flush_all(0)
    finally:
        for kind in enabled:
            cupti.activity_disable(kind)
        cupti.finalize()
    return summarise(seen)


def _activity(record: Any, kinds: Any) -> Activity:
    kernel = record.kind == kinds.CONCURRENT_KERNEL
    return Activity(record.name if kernel else kinds(record.kind).name, record.start, record.end)
