"""Extra work of a known duration after each timed call, to verify that a slowdown is found.

On a GPU it is `torch.cuda._sleep`, a kernel that spins, whose time is that of a launch plus its cycles. Elsewhere the
host spins.
"""

from __future__ import annotations

import functools
import statistics
import time
from dataclasses import dataclass, replace

import torch

from pytest_flashinfer_perf.engine.instruments import Call
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.engine.timing import run
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.settings.settings import InstrumentChoice, Measuring

LONG = 200_000  # cycles, about 0.1 ms
CALLS = 100


@dataclass(frozen=True)
class Extra:
    """Work that adds `seconds` to a call, on a GPU at least the time of a launch."""

    work: Call
    seconds: float

    def behind(self, target: Target) -> Target:
        """The target followed by the work, at each of its placements."""
        if not self.seconds:
            return target
        rebuilt = target.rebuilt

        def followed(*args: object, **kwargs: object) -> object:
            answer = target.function(*args, **kwargs)
            self.work()
            return answer

        again = None if rebuilt is None else lambda: self.behind(rebuilt())
        return replace(target, function=followed, rebuilt=again)


@dataclass(frozen=True)
class Spin:
    """The seconds that a spinning kernel adds to the kernel before it."""

    launch: float
    per_cycle: float

    def lasting(self, seconds: float) -> Extra:
        cycles = max(1, round((seconds - self.launch) / self.per_cycle))
        return Extra(functools.partial(_sleep, cycles), self.launch + cycles * self.per_cycle)


def planned(measuring: Measuring, device: Device, *, cuda_graph: bool) -> Extra:
    """The extra work that `measuring` requests."""
    if not measuring.plant or not device.is_gpu:
        return Extra(functools.partial(_busy, measuring.plant), measuring.plant)
    return _spin(device, measuring.instrument, cuda_graph).lasting(measuring.plant)


@functools.cache
def _spin(device: Device, instrument: InstrumentChoice, graph: bool) -> Spin:
    """Measure the spinning kernel as cases are measured, once for each way to launch."""
    how = Measuring(instrument=instrument, cold_l2="none", iters=CALLS)

    def median(*cycles: int) -> float:
        timed = run(Target(_sleep, cycles), how, device, cuda_graph=graph, verify=lambda *_: None)
        return statistics.median(timed.busy or timed.samples)

    alone, followed, longer = median(LONG), median(LONG, 1), median(LONG, LONG)
    return Spin(followed - alone, (longer - followed) / LONG)


def _sleep(*cycles: int) -> None:
    for one in cycles:
        torch.cuda._sleep(one)  # noqa: SLF001 - torch has no public kernel of a chosen time


def _busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
