"""The clock pass: run calls between kernels that read each SM's cycle counter and the global timer.

A compute-bound kernel needs the same cycles whatever the power cap does to its clock; NVML samples too rarely to show.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pytest_flashinfer_perf.engine import stopping
from pytest_flashinfer_perf.engine.instruments import Work
from pytest_flashinfer_perf.machine import nvrtc, provenance
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.machine.provenance import Telemetry
from pytest_flashinfer_perf.rows import scatter

CALLS = 10  # of each placement
MOST_CALLS, SHORT_S = 30, 1e-3  # of calls so short that this many take no longer than that
HOLDS = (2, 4)  # how long the queue is held, in units of the time that it takes to fill it
LONGEST_HOLD_NS = 100_000_000
ALL_CALLS = (1 + len(HOLDS)) * MOST_CALLS

SOURCE = r"""
__device__ unsigned long long now() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}
extern "C" __global__ void stamp(unsigned long long* at, unsigned long long processors) {
    unsigned int sm;
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    if (sm >= processors) return;  // CUDA does not promise that SMs are numbered without holes
    at[2 * sm] = now();
    at[2 * sm + 1] = clock64();
}
extern "C" __global__ void hold(unsigned long long ns) {
    for (unsigned long long start = now(); now() - start < ns;) {}
}
extern "C" __global__ void nothing(unsigned long long) {}
"""


@dataclass(frozen=True)
class Clocks:
    """SM cycles and the SM clock in GHz of each call, and what NVML reported meanwhile.

    `queued`: each call was in the queue before the GPU reached it, so that it waited for the host in none.
    """

    cycles: tuple[float, ...]
    ghz: tuple[float, ...]
    queued: bool = True
    telemetry: Telemetry = field(default_factory=Telemetry)

    @property
    def median_cycles(self) -> float:
        return statistics.median(self.cycles)

    @property
    def cycles_spread(self) -> float | None:
        return scatter.spread(self.cycles)

    @property
    def median_ghz(self) -> float:
        return statistics.median(self.ghz)


def joined(passes: Sequence[Clocks]) -> Clocks:
    cycles, ghz = ([value for one in passes for value in getattr(one, name)] for name in ("cycles", "ghz"))
    queued = 2 * sum(one.queued for one in passes) > len(passes)
    return Clocks(tuple(cycles), tuple(ghz), queued, passes[-1].telemetry)


def clock_pass(work: Work, seconds_per_call: float) -> Clocks:
    """Stamp calls of this many seconds each; NVML is read while the device is busy with them."""
    kernels, device = _kernels(work.device), work.device
    calls = max(stopping.fitting(CALLS, seconds_per_call), stopping.fitting(MOST_CALLS, seconds_per_call, SHORT_S))
    stamps = torch.zeros(2, calls, device.processors, 2, dtype=torch.int64, device=device.torch)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        start = time.perf_counter_ns()
        kernels.enqueue(work, stamps)
        queueing = time.perf_counter_ns() - start
        for times in HOLDS:
            stream.synchronize()
            stamps.zero_()
            kernels.hold(min(times * queueing, LONGEST_HOLD_NS))
            in_queue = kernels.enqueue(work, stamps)
            if all(in_queue):
                break
        seen = provenance.read(device)
    torch.cuda.current_stream().wait_stream(stream)
    return replace(of_queued(stamps, in_queue), telemetry=seen)


def of_queued(stamps: Tensor, in_queue: Sequence[bool]) -> Clocks:
    """Of the calls that were in the queue if most were. A queue that is full lets the GPU catch up with the last."""
    kept = [i for i, known in enumerate(in_queue) if known]
    queued = 2 * len(kept) > len(in_queue)
    return replace(read(stamps[:, kept] if queued else stamps), queued=queued)


def read(stamps: Tensor) -> Clocks:
    """The medians over the SMs that both stamps reached, from [before and after, call, SM, time and cycles]."""
    before, after = stamps.cpu()
    elapsed = (after - before).double()  # nanoseconds since boot do not fit in a double, their differences do
    elapsed[(before[..., 0] == 0) | (after[..., 0] == 0) | (elapsed[..., 0] <= 0)] = math.nan
    cycles, ghz = torch.stack((elapsed[..., 1], elapsed[..., 1] / elapsed[..., 0])).nanmedian(dim=-1).values.tolist()
    return Clocks(tuple(cycles), tuple(ghz))


@dataclass(frozen=True)
class _Kernels:
    stamp: nvrtc.Launch
    spin: nvrtc.Launch
    processors: int

    def enqueue(self, work: Work, stamps: Tensor) -> list[bool]:
        """Whether each call was in the queue before the GPU reached it."""
        in_queue = []
        for i in range(stamps.shape[1]):
            work.chill()
            reached: torch.cuda.Event = torch.cuda.current_stream().record_event()
            self._stamp(stamps[0, i])
            work()
            self._stamp(stamps[1, i])
            in_queue.append(not reached.query())
        return in_queue

    def _stamp(self, at: Tensor) -> None:
        self.stamp(2 * self.processors, 1, at.data_ptr(), self.processors)

    def hold(self, nanoseconds: int) -> None:
        self.spin(1, 1, nanoseconds)


@functools.cache
def _kernels(device: Device) -> _Kernels:
    return _Kernels(nvrtc.kernel(SOURCE, "stamp", device), nvrtc.kernel(SOURCE, "hold", device), device.processors)
