"""Time a call that all ranks make together: from the last arrival to the last end.

Before each timed call the ranks meet. Whoever is late nevertheless makes the others wait inside the call, so that each
rank's own span contains the lateness of another; the time from the last arrival to the last end does not. To subtract
times of two processes takes one clock, which is proved first (`clock.py`).
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from pytest_flashinfer_perf.api import Device, Measuring, Target, garbage, instruments, timing
from pytest_flashinfer_perf.engine.observers import Reached
from pytest_flashinfer_perf.extensions.ranks import asked, device_clock, links
from pytest_flashinfer_perf.extensions.ranks.clock import Spans, seconds
from pytest_flashinfer_perf.extensions.ranks.joined import Ranks
from pytest_flashinfer_perf.extensions.ranks.rank_times import NAME, RankTimes

PROOF_CALLS = 100
LATE_S, LATE_CALLS = 200e-6, 30
LAST_TO_LAST, LONGEST = "last arrival to last end", "maximum over ranks"


@dataclass(frozen=True)
class HostClock:
    """The host's clock around a call and its completion. On Linux it is one clock for all processes of a host."""

    ranks: Ranks
    now: Callable[[], int] = time.perf_counter_ns
    name: str = "wall"
    trace: None = None
    drifts: bool = False

    def spans(self, work: instruments.Work, count: int, late_s: float) -> list[tuple[int, int]]:
        with garbage.without_gc():
            return [self._once(work, late_s) for _ in range(count)]

    def _once(self, work: instruments.Work, late_s: float) -> tuple[int, int]:
        work.chill()
        work.device.synchronize()
        self.ranks.meet()
        if late_s:
            time.sleep(late_s)
        arrival = self.now()
        work()
        work.device.synchronize()
        return arrival, self.now()


# Notes when this rank arrives at each of some calls and ends it, in nanoseconds; all ranks meet before each.
Clock = HostClock | device_clock.DeviceClock


@dataclass
class Together:
    """An instrument of the engine that answers the same to every rank: one figure for each call of all of them."""

    ranks: Ranks
    clock: Clock
    proof: Spans = field(init=False)
    timed: list[Spans] = field(default_factory=list)
    offset_ns: int = 0  # the largest that was taken off

    def __post_init__(self) -> None:
        tiny = torch.ones(1, device=self.ranks.device.torch)
        work = instruments.Work((functools.partial(dist.all_reduce, tiny),), flush=False, device=self.ranks.device)
        self.proof = self._spans(work, PROOF_CALLS, warmup=3)

    @property
    def name(self) -> str:
        return self.clock.name

    @property
    def figure(self) -> str:
        return LONGEST if self.proof.violations else LAST_TO_LAST

    def missing(self, device: Device) -> str | None:  # noqa: ARG002 - it was chosen for this device
        return None

    def sample(self, work: instruments.Work, count: int, warmup: int) -> list[instruments.CallTime]:
        """Untimed calls are made as timed ones are, right before them: after idling a call takes 100 us more."""
        self.timed.append(self._aligned(self._spans(work, count, warmup)))
        return list(map(instruments.CallTime, self.figures(self.timed[-1])))

    def now(self) -> float:
        return self.ranks.clock()

    def figures(self, seen: Spans) -> list[float]:
        return seen.longest if self.proof.violations else seen.last_to_last

    def _aligned(self, seen: Spans, beside: Spans | None = None) -> Spans:
        """Less how far the clocks have drifted apart, which they or calls beside them show that all came to at once."""
        if not self.clock.drifts:
            return seen
        offsets = (beside or seen).offsets
        self.offset_ns = max(self.offset_ns, int(offsets.abs().max()))
        return seen.less(offsets)

    def _spans(self, work: instruments.Work, count: int, warmup: int = 1, late_s: float = 0.0) -> Spans:
        return Spans.of(self.ranks.everybodys(self.clock.spans(work, warmup + count, late_s)[warmup:]))

    def described(self, work: instruments.Work) -> RankTimes:
        """What the row says; a few more calls are made first, and as many to which the last rank comes late."""
        late_s = LATE_S if self.ranks.rank == self.ranks.size - 1 else 0.0
        seen = functools.reduce(Spans.__add__, self.timed)
        calls = min(LATE_CALLS, len(seen.longest))
        beside = self._spans(work, calls)
        late = self._aligned(self._spans(work, calls, late_s=late_s), beside)
        differs = self.proof.violations > 0
        # Where clocks differ there is nothing but its own start that a rank's times can be counted from.
        raw = seen.less(seen.arrivals if differs else seen.arrivals.amin(0))
        return RankTimes(
            ranks=self.ranks.size,
            collective=self.ranks.collective,
            figure=self.figure,
            backend=str(dist.get_backend()),
            transport=asked.multicast() if self.ranks.device.is_gpu else "one host",
            clock_bound_ns=None if differs else self.proof.bound_ns,
            clock_offset_ns=self.offset_ns,
            clock_violations=self.proof.violations,
            clock_calls=PROOF_CALLS,
            max_over_ranks_s=statistics.median(seen.longest),
            arrival_skew_s=raw.skew,
            end_skew_s=raw.end_skew,
            late_s=LATE_S,
            late_figure_s=statistics.median(self.figures(late)),
            punctual_figure_s=statistics.median(self.figures(self._aligned(beside))),
            arrivals_s=tuple(map(tuple, map(seconds, raw.arrivals))),
            ends_s=tuple(map(tuple, map(seconds, raw.ends))),
            links_gb_per_s={source: rate / 1e9 for source, rate in links.roofs(self.ranks).items()},
        )


@dataclass(frozen=True)
class LinkRoof:
    """The roof of what several processes do together is that of their links."""

    times: RankTimes

    def reached(self, moved: float | None, seconds: float, choice: str) -> Reached:
        """With multicast a link carries fewer bytes, so that its share can be above 100 %."""
        times = self.times.carrying(moved, seconds)
        parts, shares = {NAME: times}, times.shares()
        if not shares:
            return Reached(parts=parts)
        source = min(shares, key=lambda one: one != choice)
        limit_pct = min(shares.values()) if times.is_without_multicast else None
        return Reached(shares[source], "link", source, limit_pct, parts)


def chosen(ranks: Ranks, name: str) -> tuple[Together, str]:
    """The instrument of a group, and why it is not the best; raises InstrumentError in all ranks alike."""
    if name == "events":
        raise instruments.InstrumentError(
            "--perf-instrument=events: no clock of events is common to processes, use cupti or wall"
        )
    why_not = None if name == "wall" else device_clock.missing(ranks)
    if name == "cupti" and why_not:
        raise instruments.InstrumentError(f"--perf-instrument=cupti: {why_not}")
    if name == "wall" or why_not:
        fallback = f"measured with wall, not cupti: {why_not}" if ranks.device.is_gpu and name == "auto" else ""
        return Together(ranks, HostClock(ranks)), fallback
    return Together(ranks, device_clock.DeviceClock(ranks)), ""


def run(
    ranks: Ranks, target: Target, measuring: Measuring, _device: Device, *, cuda_graph: bool, verify: timing.Verify
) -> timing.Timing:
    """Time the target as on one device; all that decides how many calls there are is agreed among the ranks."""
    together, fallback = chosen(ranks, measuring.instrument)

    def observed(last: timing.Placed, _timed: object) -> timing.Observations:
        timed = together.clock.trace  # before a rank comes late, which the others' kernels wait for
        return timing.Observations(roof=LinkRoof(together.described(last.work)), trace=timed)

    conditions = timing.Conditions(lambda *_: instruments.ChosenInstrument(together, fallback), observed, cycles=False)
    device = ranks.shared_device
    return timing.run(target, measuring, device, cuda_graph=cuda_graph, verify=verify, conditions=conditions)
