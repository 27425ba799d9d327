"""The host time of a call: the time to enqueue it and to plan it, without a graph and without a profiler.

Calls are timed in rounds. Before a round the queue is empty, and a spinning kernel keeps the GPU busy until the round
is enqueued: the GPU is never idle, and nothing waits for it. A round is short enough that the queue never fills. A call
that waits for the GPU would also wait for the spinning kernel, so it is timed without one. A fixed piece of host work
before and after each round tells how fast the core was. Rounds are shared out to a few cores.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from pytest_flashinfer_perf.api import Device, Target, cupti, garbage, instruments, load, observers
from pytest_flashinfer_perf.extensions.host import host_calls
from pytest_flashinfer_perf.extensions.host.host_calls import Counts, counted
from pytest_flashinfer_perf.extensions.host.host_time import NAME, HostTime

ROUNDS, FEWEST_ROUNDS = 12, 5
CALLS, FEWEST_CALLS = 10, 4  # of a round; the first call after a pause, or on another core, may take 5 times as long
WARMUPS, TRIALS = 3, 3
REFERENCES = 2  # before a round, and again after it
PLANS, FEWEST_PLANS = 12, 5
SECONDS = 0.02  # of host time or of GPU time, for all rounds, and again for all plans
MOST_SECONDS = 0.1  # for FEWEST_ROUNDS of FEWEST_CALLS; if those take longer, a round has fewer calls
QUEUE = 512  # launches: half of those that a stream takes before the next one waits
UNKNOWN_LAUNCHES = 128  # of a call whose launches were not counted: at most four calls in a round
HOLD, SHORTEST_HOLD_S, LONGEST_HOLD_S = 1.5, 0.5e-3, 0.5  # in units of the round that it must outlast
FASTEST_CLOCK_HZ = 2.2e9  # a slower one holds longer


@dataclass(frozen=True)
class Queue:
    """The current stream of a GPU, in which calls are enqueued."""

    device: Device

    def drain(self) -> None:
        self.device.synchronize()

    def hold(self, seconds: float) -> Callable[[], bool]:
        """Hold the queue for this long; the returned function tells whether it still holds."""
        torch.cuda._sleep(round(seconds * FASTEST_CLOCK_HZ))  # noqa: SLF001 - torch has no public kernel of a chosen time
        over = torch.cuda.Event()
        over.record()
        return lambda: not over.query()


@dataclass(frozen=True)
class Round:
    """Seconds of each call and of the references beside them; whether the queue was held until the last call."""

    calls: tuple[float, ...]
    references: tuple[float, ...]
    held: bool

    @property
    def median(self) -> float:
        return statistics.median(self.calls)


# A fixed piece of host work that is timed beside calls, to compare cores of different speed. Two virtual cores may be
# two threads of one real core: each takes up to twice as long while the other is busy, and what runs there may not
# even be visible. So the reference is timed beside each round, on a few cores in turn: the fastest call in units of
# the fastest reference is nearly the same in each process. The reference needs Python alone, so that it is the same
# whatever version of FlashInfer or torch is installed.

MOST_CORES = 4


def _call(q: int, k: int, v: int | None = None, *, out: int | None = None, scale: float = 1.0) -> None: ...


SIGNATURE = inspect.signature(_call)
DOCUMENT = {f"field_{n}": [n, str(n), {"shape": n}] for n in range(4)}
WORD = re.compile(r"(\w+)_(\d+)")


def reference_work() -> object:
    """Bind arguments, write and read JSON, search a text: Python and C as a library's checks of its arguments are."""
    bound = SIGNATURE.bind(1, 2, out=3, scale=0.5)
    bound.apply_defaults()
    text = json.dumps(DOCUMENT)
    return json.loads(text), WORD.findall(text), bound.arguments


@contextmanager
def moving_over_cores() -> Iterator[Callable[[float], None]]:
    """Hand out a function that moves this thread to one of a few cores, by the share of the work that is done."""
    allowed = os.sched_getaffinity(0)
    cores = _spread_over_cores(sorted(allowed))
    try:
        yield lambda done: os.sched_setaffinity(0, {cores[int(done * len(cores))]})
    finally:
        os.sched_setaffinity(0, allowed)


def _spread_over_cores(cores: list[int]) -> list[int]:
    return cores[:: -(-len(cores) // MOST_CORES)]


@dataclass(frozen=True)
class Timer:
    queue: Queue
    clock: Callable[[], float] = time.perf_counter
    reference: instruments.Call = reference_work
    move: Callable[[float], None] = lambda _done: None

    def enqueued(self, call: instruments.Call, *, launches: int, on_device: float) -> tuple[list[Round], bool]:
        """The rounds of a call, and whether the call waits for the GPU.

        A call has this many launches, and takes the GPU `on_device` seconds. Rounds whose hold ended early are left
        out, unless all of them did.
        """
        each = statistics.median(self._each(call, WARMUPS))
        rounds, calls = shares(max(each, on_device), launches)
        waits = not any(self._round(call, 1, _hold(each)).held for _ in range(TRIALS))
        hold = 0.0 if waits else _hold(calls * each)
        measured = self._rounds(rounds, call, calls, hold)
        return [one for one in measured if one.held] or measured, waits

    def planned(self, plan: instruments.Call) -> list[Round]:
        """Time plans, each after an empty queue, so that it waits for its own work only."""
        each = statistics.median(self._round(plan, 1).median for _ in range(WARMUPS))
        return self._rounds(_between(FEWEST_PLANS, PLANS, SECONDS / each), plan, 1)

    def _rounds(self, count: int, call: instruments.Call, calls: int, hold: float = 0.0) -> list[Round]:
        rounds = []
        for n in range(count):
            self.move(n / count)
            rounds.append(self._round(call, calls, hold))
        return rounds

    def _round(self, call: instruments.Call, calls: int, hold: float = 0.0) -> Round:
        before = self._each(self.reference, REFERENCES)
        self.queue.drain()
        held = self.queue.hold(hold) if hold else (lambda: True)
        seconds = self._each(call, calls)
        was_held = held()
        return Round(seconds, before + self._each(self.reference, REFERENCES), was_held)

    def _each(self, call: instruments.Call, count: int) -> tuple[float, ...]:
        return tuple(self._once(call) for _ in range(count))

    def _once(self, call: instruments.Call) -> float:
        start = self.clock()
        call()
        return self.clock() - start


def shares(each: float, launches: int) -> tuple[int, int]:
    """The number of rounds and of calls per round that fit into the time and the queue."""
    fewest = _between(1, FEWEST_CALLS, MOST_SECONDS / FEWEST_ROUNDS / each)
    calls = _between(fewest, CALLS, SECONDS / ROUNDS / each)
    calls = _between(1, calls, QUEUE / max(1, launches))
    return _between(FEWEST_ROUNDS, ROUNDS, SECONDS / calls / each), calls


def _between(least: int, most: int, wanted: float) -> int:
    return max(least, min(most, int(wanted)))


def _hold(seconds: float) -> float:
    return min(max(HOLD * seconds, SHORTEST_HOLD_S), LONGEST_HOLD_S)


class HostObserver:
    """Counts what an eager call asks of the driver, and times it on the host where all else is measured."""

    name = NAME

    def traced(self, recorder: cupti.Recorder, target: Target) -> Counts:
        return counted("cupti", lambda: host_calls.of(recorder, target))

    def observed(self, target: Target, device: Device, seconds: float, traced: Any) -> observers.Observation:
        host_time, obstacle = measured(target, device, seconds, Counts() if traced is None else traced)
        return observers.Observation(host_time, (obstacle,) if obstacle else ())


def measured(target: Target, device: Device, on_device: float, calls: Counts) -> tuple[HostTime | None, str]:
    """The host time, None on a CPU; and the reason if something could not be counted.

    `calls` are the counts that were made while CUPTI was attached for the trace.
    """
    if not device.is_gpu:
        return None, ""
    watch = load.LoadWatch()
    with watch.watched(), garbage.without_gc(), _one_thread(), moving_over_cores() as move:
        launches = calls.fields.get("launches", UNKNOWN_LAUNCHES)
        timed = _timed(Timer(Queue(device), move=move), target, on_device, launches)
    counts = calls + counted("torch's allocator", lambda: host_calls.allocations_of(target, device.torch))
    return replace(timed, **counts.fields, contention=load.during([watch])), counts.why_not


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread of torch: with several, the same plan took 1 ms in most processes and 6 to 15 ms in some."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _timed(timer: Timer, target: Target, on_device: float, launches: int) -> HostTime:
    rounds, waits = timer.enqueued(target, launches=launches, on_device=on_device)
    plans = timer.planned(target.plan) if target.plan else []
    return HostTime(
        host_us=_typical_us(rounds),
        rounds_us=_in_us(min(one.calls) for one in rounds),
        references_us=_in_us(min(one.references) for one in rounds),
        waits=waits,
        plan_us=_typical_us(plans) if plans else None,
        plans_us=_in_us(min(one.calls) for one in plans),
        plan_references_us=_in_us(min(one.references) for one in plans),
    )


def _typical_us(rounds: Iterable[Round]) -> float:
    return 1e6 * statistics.median(one.median for one in rounds)


def _in_us(seconds: Iterable[float]) -> tuple[float, ...]:
    return tuple(1e6 * value for value in seconds)
