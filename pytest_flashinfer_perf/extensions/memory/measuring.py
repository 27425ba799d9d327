"""Measure what memory a call takes, after all that is timed, with the same arguments and the same wrapper.

Torch counts the bytes that are requested of it, whatever blocks it gives for them: a few calls show a leak as exactly
as many. So many are made as fit into a hundredth of a second, and plans into half of that.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from pytest_flashinfer_perf.api import Device, Target, cupti, garbage, instruments, observers
from pytest_flashinfer_perf.extensions.memory import holdings
from pytest_flashinfer_perf.extensions.memory.memory import NAME, CallMemory, Repeated

FEWEST, CALLS, PLANS = 2, 1000, 100
SECONDS, PLAN_SECONDS = 0.01, 0.005
UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"
EARLIER: holdings.Holdings = {}  # FlashInfer's workspaces, which graphs of earlier cases may use


class MemoryObserver:
    name = NAME

    def traced(self, recorder: cupti.Recorder, target: Target) -> None: ...

    def observed(self, target: Target, device: Device, seconds: float, traced: Any) -> observers.Observation:  # noqa: ARG002
        memory = CountedCalls(Allocator(device), device, seconds).of(target)
        return observers.Observation(memory, (f"--perf-memory: {why}",) if (why := missing(device)) else ())


def missing(device: Device) -> str | None:
    """Why the memory of a call is not counted on this device."""
    if device.torch.type != "cuda":
        return f"torch counts no memory of {device.torch}; what a call holds and the host's memory are known"
    if torch.cuda.get_allocator_backend() != "native":
        return "torch's allocator is not its native one, which counts requests: unset PYTORCH_CUDA_ALLOC_CONF"
    return f"torch counts nothing with {UNCACHED}: unset it" if os.environ.get(UNCACHED) else None


class Counted(NamedTuple):
    """Bytes that are requested now, and at most since the last restart; and what was asked of the driver."""

    current: int
    peak: int
    device_allocations: int | None
    outside: int  # bytes of the device that are not torch's


@dataclass(frozen=True)
class Allocator:
    device: Device

    def read(self) -> Counted | None:
        if missing(self.device):
            return None
        self.device.synchronize()
        counted = torch.cuda.memory_stats_as_nested_dict(self.device.torch)
        requested, reserved = (counted[name]["all"] for name in ("requested_bytes", "reserved_bytes"))
        free, total = torch.cuda.mem_get_info(self.device.torch)
        outside = total - free - reserved["current"]
        return Counted(requested["current"], requested["peak"], counted.get("num_device_alloc"), outside)

    def restart(self) -> None:
        if not missing(self.device):
            torch.cuda.reset_peak_memory_stats(self.device.torch)

    def resident(self) -> int | None:
        pages = Path("/proc/self/statm")
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if pages.exists() else None


@dataclass(frozen=True)
class CountedCalls:
    """Makes calls and plans between readings of the allocator; a call takes the device so many `seconds`."""

    allocator: Allocator
    device: Device
    seconds: float
    clock: Callable[[], float] = time.perf_counter

    def of(self, target: Target) -> CallMemory:
        # What it holds, and what graphs may use.
        kind = self.device.torch.type
        shared, before = holdings.shared_by(target), holdings.of_call(target, kind)
        used = {**EARLIER, **before}

        # The calls, and the plans.
        start = self.allocator.read()
        with garbage.without_gc():
            calls = self._repeated(target, CALLS, SECONDS)
            plans = self._repeated(target.plan, PLANS, PLAN_SECONDS) if target.plan else None
        end = self.allocator.read()

        # What became of what it held.
        now = holdings.of_call(target, kind)
        EARLIER.clear()
        EARLIER.update(holdings.of_process())
        if lost := holdings.lost(used, now):
            why = "a captured graph uses what it was, and its replay reads and writes another's memory"
            pytest.fail(f"memory was allocated anew: {', '.join(lost)}; {why}", pytrace=False)
        return CallMemory(
            calls,
            plans,
            held={name: one.bytes for name, one in {**before, **shared}.items()},
            grown=tuple(name for name, one in now.items() if name in before and one.bytes > before[name].bytes),
            device_allocations=_more(start, end, 2),
            outside_bytes=_more(start, end, 3),
            resident_bytes=self.allocator.resident(),
        )

    def _repeated(self, call: instruments.Call, most: int, seconds: float) -> Repeated:
        """Make one call for its peak, and then as many as there is time for, by the host's clock or the device's."""
        self.allocator.restart()
        before, start = self.allocator.read(), self.clock()
        call()
        each = max(self.seconds, self.clock() - start if self.device.is_gpu else 0.0)
        peak = _more(before, self.allocator.read(), 1)
        times = max(FEWEST, min(most, int(seconds / each)))
        return Repeated(peak, times, self._left(call, times))

    def _left(self, call: instruments.Call, times: int) -> int | None:
        """What is left of so many calls; without Python's garbage, which is collected if anything seems to be left."""
        left = None
        for collect in (int, gc.collect):
            collect()
            start = self.allocator.read()
            for _ in range(times):
                call()
            collect()
            left = _more(start, self.allocator.read(), 0)
            if not left:
                break
        return left


def _more(before: Counted | None, after: Counted | None, place: int) -> int | None:
    was, now = (None if one is None else one[place] for one in (before, after))
    return None if was is None or now is None else now - was
