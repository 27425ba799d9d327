"""Time a call that all ranks make together: from the last arrival to the last end.

Before each timed call the ranks meet. Whoever is late nevertheless makes the others wait inside the call, so that each
rank's own span contains the lateness of another; the time from the last arrival to the last end does not.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field

import torch.distributed as dist

from pytest_flashinfer_perf.api import Device, Measuring, Target, garbage, instruments, observers, timing
from pytest_flashinfer_perf.extensions.ranks import device_clock, rank_environment
from pytest_flashinfer_perf.extensions.ranks.clock import Spans
from pytest_flashinfer_perf.extensions.ranks.joined import Ranks
from pytest_flashinfer_perf.extensions.ranks.rank_times import LINKS, NAME, RankTimes


@dataclass(frozen=True)
class HostClock:
    """The host's clock around a call and its completion. On Linux it is one clock for all processes of a machine."""

    ranks: Ranks
    name: str = "wall"
    trace: None = None
    drifts: bool = False

    def spans(self, work: instruments.Work, count: int) -> list[tuple[int, int]]:
        with garbage.without_gc():
            return [self._once(work) for _ in range(count)]

    def _once(self, work: instruments.Work) -> tuple[int, int]:
        work.chill()
        work.device.synchronize()
        self.ranks.meet()
        arrival = time.perf_counter_ns()
        work()
        work.device.synchronize()
        return arrival, time.perf_counter_ns()


# Notes when this rank arrives at each of some calls and ends it, in nanoseconds; all ranks meet before each.
Clock = HostClock | device_clock.DeviceClock


@dataclass
class Together:
    """An instrument of the engine that answers the same to every rank: one figure for each call of all of them."""

    ranks: Ranks
    clock: Clock
    timed: list[Spans] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.clock.name

    def missing(self, device: Device) -> str | None:  # noqa: ARG002 - it was chosen for this device
        return None

    def sample(self, work: instruments.Work, count: int, warmup: int) -> list[instruments.CallTime]:
        """Untimed calls are made as timed ones are, right before them: after idling a call takes 100 us more."""
        spans = Spans.of(self.ranks.of_all_ranks(self.clock.spans(work, warmup + count)[warmup:]))
        self.timed.append(spans.aligned if self.clock.drifts else spans)
        return list(map(instruments.CallTime, self.timed[-1].last_to_last))

    def now(self) -> float:
        return self.ranks.clock()

    def described(self) -> RankTimes:
        """What the row says, beside the figures."""
        spans = Spans.joined(self.timed)
        return RankTimes(
            ranks=self.ranks.size,
            collective=self.ranks.collective,
            backend=str(dist.get_backend()),
            transport=rank_environment.multicast() if self.ranks.device.is_gpu else "one host",
            max_over_ranks_s=statistics.median(spans.longest),
            arrival_skew_s=spans.skew,
            end_skew_s=spans.end_skew,
        )


@dataclass(frozen=True)
class LinkRoof:
    """The roof of what several processes do together is that of their links, by the datasheet of the GPU."""

    times: RankTimes
    link: float | None  # GB per second, where it is known

    def reached(self, moved: float | None, seconds: float, _choice: str) -> observers.Reached:
        """With multicast a link carries fewer bytes, so that its share can be above 100 %."""
        times = self.times.carrying(moved, seconds)
        parts = {NAME: times}
        if times.busbw_gb_per_s is None or self.link is None:
            return observers.Reached(parts=parts)
        share = 100 * times.busbw_gb_per_s / self.link
        return observers.Reached(share, "link", "datasheet", share if times.is_without_multicast else None, parts)


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


def run(  # noqa: PLR0913 - one argument per part of a measurement
    ranks: Ranks,
    target: Target,
    measuring: Measuring,
    _device: Device,
    *,
    cuda_graph: bool,
    verify: timing.Verify,
    spent: float = 0.0,  # noqa: ARG001 - by the clock of this rank alone
) -> timing.Timing:
    """Time the target as on one device; all that decides how many calls there are is agreed among the ranks."""
    together, fallback = chosen(ranks, measuring.instrument)

    def observed(_last: object, _timed: object) -> timing.Observations:
        roof = LinkRoof(together.described(), LINKS.get(ranks.device.name))
        return timing.Observations(roof=roof, trace=together.clock.trace)

    conditions = timing.Conditions(lambda *_: instruments.ChosenInstrument(together, fallback), observed, cycles=False)
    device = ranks.shared_device
    return timing.run(target, measuring, device, cuda_graph=cuda_graph, verify=verify, conditions=conditions)
