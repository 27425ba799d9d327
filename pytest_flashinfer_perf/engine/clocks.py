"""The clock pass: run calls between kernels that read each SM's cycle counter and the global timer.

A compute-bound kernel needs the same cycles whatever the power cap does to its clock; NVML samples too rarely to show.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
# The queue is held until all calls are in it, or for this many times as long as that should take: a call that waits for
# the GPU would wait for ever.
PATIENCE, SHORTEST_HOLD_NS, LONGEST_HOLD_NS = 4, 1_000_000, 100_000_000
ALL_CALLS = 1 + MOST_CALLS

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
extern "C" __global__ void hold(const volatile int* released, unsigned long long ns) {
    for (unsigned long long start = now(); !*released && now() - start < ns;) {}
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


def join(passes: Sequence[Clocks]) -> Clocks:
    """Join the clocks of several placements, of which most decide whether calls were queued."""
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
        # One call shows how long the host takes for it, and all are in the queue before the GPU begins.
        start = time.perf_counter_ns()
        kernels.enqueue(work, stamps[:, :1])
        each = time.perf_counter_ns() - start
        stream.synchronize()
        stamps[:, 0].zero_()
        with kernels.hold_queue(min(max(PATIENCE * calls * each, SHORTEST_HOLD_NS), LONGEST_HOLD_NS)):
            in_queue = kernels.enqueue(work, stamps)
        telemetry = provenance.read(device)
    torch.cuda.current_stream().wait_stream(stream)
    return replace(of_queued(stamps, in_queue), telemetry=telemetry)


def of_queued(stamps: Tensor, in_queue: Sequence[bool]) -> Clocks:
    """Read the calls that were queued in time, if most were; a full queue lets the GPU catch up with the last ones."""
    in_time = [i for i, was_in_queue in enumerate(in_queue) if was_in_queue]
    queued = 2 * len(in_time) > len(in_queue)
    return replace(read(stamps[:, in_time] if queued else stamps), queued=queued)


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
    hold: nvrtc.Launch
    processors: int
    released: Tensor  # a number in memory of the host that the device can read

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

    @contextmanager
    def hold_queue(self, nanoseconds: int) -> Iterator[None]:
        """Hold the queue until the end of this block, at most so long."""
        self.released.zero_()
        self.hold(1, 1, self.released.data_ptr(), nanoseconds)
        try:
            yield
        finally:
            self.released.fill_(1)


@functools.cache
def _kernels(device: Device) -> _Kernels:
    stamp, hold = (nvrtc.kernel(SOURCE, name, device) for name in ("stamp", "hold"))
    return _Kernels(stamp, hold, device.processors, torch.zeros(1, dtype=torch.int32, pin_memory=True))
