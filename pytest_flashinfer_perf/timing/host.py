"""The host time of a call: the time to enqueue it and to plan it, without a graph and without a profiler.

Calls are timed in rounds. Before a round the queue is empty, and a spinning kernel keeps the GPU busy until the round
is enqueued: the GPU is never idle, and nothing waits for it. A round is short enough that the queue never fills. A call
that waits for the GPU would also wait for the spinning kernel, so it is timed without one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.runs.host_time import HostTime
from pytest_flashinfer_perf.timing import host_calls
from pytest_flashinfer_perf.timing.instruments import Call, without_gc
from pytest_flashinfer_perf.timing.target import Target

ROUNDS, FEWEST_ROUNDS, CALLS = 10, 5, 10
WARMUPS, TRIALS = 3, 3
PLANS, FEWEST_PLANS = 10, 5
SECONDS = 0.02  # of host time or of GPU time, for all rounds, and again for all plans
QUEUE = 512  # launches: half of those that a stream takes before the next one waits
UNKNOWN_LAUNCHES = 128  # more than any call here has
HOLD, SHORTEST_HOLD_S, LONGEST_HOLD_S = 1.5, 0.5e-3, 0.5  # in units of the round that it must outlast
FASTEST_CLOCK_HZ = 2.2e9  # a slower one holds longer


class Queue(Protocol):
    """The queue in which calls are enqueued."""

    def drain(self) -> None: ...

    def hold(self, seconds: float) -> Callable[[], bool]:
        """Hold the queue for this long; the returned function tells whether it still holds."""
        ...


@dataclass(frozen=True)
class Stream:
    """The current stream of a GPU."""

    device: Device

    def drain(self) -> None:
        self.device.synchronize()

    def hold(self, seconds: float) -> Callable[[], bool]:
        torch.cuda._sleep(round(seconds * FASTEST_CLOCK_HZ))  # noqa: SLF001 - torch has no public kernel of a chosen time
        over = torch.cuda.Event()
        over.record()
        return lambda: not over.query()


@dataclass(frozen=True)
class Rounds:
    """Seconds of each call, round by round; whether the calls wait for the GPU."""

    seconds: tuple[tuple[float, ...], ...]
    waits: bool

    @property
    def medians(self) -> tuple[float, ...]:
        return tuple(map(statistics.median, self.seconds))


@dataclass(frozen=True)
class Timer:
    queue: Queue
    clock: Callable[[], float] = time.perf_counter

    def enqueued(self, call: Call, *, launches: int, on_device: float) -> Rounds:
        """Time calls that launch `launches` kernels each, and keep the GPU busy for `on_device` seconds."""
        each = statistics.median(self._round(call, WARMUPS)[0])
        rounds, calls = shares(max(each, on_device), launches)
        waits = not any(self._round(call, 1, _hold(each))[1] for _ in range(TRIALS))
        hold = 0.0 if waits else _hold(calls * each)
        made = [self._round(call, calls, hold) for _ in range(rounds)]
        kept = [seconds for seconds, held in made if held] or [seconds for seconds, _ in made]
        return Rounds(tuple(map(tuple, kept)), waits)

    def planned(self, plan: Call) -> tuple[float, ...]:
        """Time plans, each after an empty queue, so that it waits for its own work only."""
        each = statistics.median(self._alone(plan, WARMUPS))
        return tuple(self._alone(plan, _between(FEWEST_PLANS, PLANS, SECONDS / each)))

    def _alone(self, call: Call, count: int) -> list[float]:
        return [self._round(call, 1)[0][0] for _ in range(count)]

    def _round(self, call: Call, calls: int, hold: float = 0.0) -> tuple[list[float], bool]:
        self.queue.drain()
        held = self.queue.hold(hold) if hold else (lambda: True)
        seconds = [self._once(call) for _ in range(calls)]
        return seconds, held()

    def _once(self, call: Call) -> float:
        start = self.clock()
        call()
        return self.clock() - start


def shares(each: float, launches: int) -> tuple[int, int]:
    """The number of rounds and of calls per round that fit into the time and the queue."""
    calls = _between(1, min(CALLS, max(1, QUEUE // max(1, launches))), SECONDS / ROUNDS / each)
    return _between(FEWEST_ROUNDS, ROUNDS, SECONDS / calls / each), calls


def _between(least: int, most: int, wanted: float) -> int:
    return max(least, min(most, int(wanted)))


def _hold(seconds: float) -> float:
    return min(max(HOLD * seconds, SHORTEST_HOLD_S), LONGEST_HOLD_S)


def measured(target: Target, device: Device, on_device: float, launches: int | None) -> tuple[HostTime | None, str]:
    """The host time, None on a CPU; and the reason if calls of the driver could not be counted."""
    if not device.is_gpu:
        return None, ""
    start = time.perf_counter()
    with without_gc():
        timed = _timed(Timer(Stream(device)), target, on_device, launches or UNKNOWN_LAUNCHES)
    counted, why_not = host_calls.counted(target, device)
    seen = replace(timed, **counted)
    return replace(seen, pass_s=time.perf_counter() - start), why_not


def _timed(timer: Timer, target: Target, on_device: float, launches: int) -> HostTime:
    enqueued = timer.enqueued(target, launches=launches, on_device=on_device)
    plans = timer.planned(target.plan) if target.plan else ()
    rounds_us, plans_us = _in_us(enqueued.medians), _in_us(plans)
    return HostTime(
        host_us=statistics.median(rounds_us),
        rounds_us=rounds_us,
        waits=enqueued.waits,
        plan_us=statistics.median(plans_us) if plans_us else None,
        plans_us=plans_us,
    )


def _in_us(seconds: Sequence[float]) -> tuple[float, ...]:
    return tuple(1e6 * value for value in seconds)
