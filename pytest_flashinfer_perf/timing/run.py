"""One call, timed: placements until there are enough, each with cold argument sets and CUDA graphs; then a trace."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.config.settings import Measuring
from pytest_flashinfer_perf.machine import nvrtc, telemetry
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.machine.telemetry import Telemetry
from pytest_flashinfer_perf.runs import scatter
from pytest_flashinfer_perf.runs.host_time import HostTime
from pytest_flashinfer_perf.timing import block_order, clocks, cold, graphs, instruments, placements, stopping
from pytest_flashinfer_perf.timing.clocks import Clocks, clock_pass
from pytest_flashinfer_perf.timing.instruments import INSTRUMENTS, Call, Instrument, Work
from pytest_flashinfer_perf.timing.placements import Placement
from pytest_flashinfer_perf.timing.stopping import Sampling
from pytest_flashinfer_perf.timing.target import Target
from pytest_flashinfer_perf.timing.trace import Trace, trace

FEW_LAUNCHES, GAPS = 10, 1.5
FEWEST_CALLS_IN_GRAPH = 10


@dataclass(frozen=True)
class Observations:
    trace: Trace | None = None
    clocks: Clocks | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    notes: tuple[str, ...] = ()
    host: HostTime | None = None


@dataclass(frozen=True)
class Timing:
    """Samples in seconds, and what the instrument really did to get them."""

    samples: tuple[float, ...]
    instrument: str
    cold_l2: str
    rotations: int
    cuda_graph: bool
    warmups: int = 0
    stopped: str = "asked"
    notes: tuple[str, ...] = ()
    fallback: str = ""
    seen: Observations = field(default_factory=Observations)
    placements: tuple[Placement, ...] = ()

    @property
    def median(self) -> float:
        if not self.samples:
            raise RuntimeError("nothing was timed: --perf-refcheck=only looks at answers")
        return statistics.median(self.samples)

    @property
    def std(self) -> float:
        return statistics.stdev(self.samples) if len(self.samples) > 1 else 0.0

    @property
    def spread(self) -> float | None:
        return scatter.spread(self.samples)

    @property
    def noisy(self) -> bool:
        return scatter.is_noisy(self.samples, self.instrument)

    @property
    def host_bound(self) -> bool | None:
        """Kernels wait for their launches, so that the host's time is what is seen; None where there is no trace."""
        seen = self.seen.trace
        if seen is None:
            return None
        waits = seen.span_s > GAPS * seen.busy_s or (seen.launches > FEW_LAUNCHES and self.noisy)
        return seen.launches > 1 and waits and not self.cuda_graph


NOT_TIMED = Timing((), "none", "none", 0, cuda_graph=False)


@dataclass(frozen=True)
class Placed:
    """A placement that was timed, and what is needed to call it again."""

    target: Target
    work: Work
    sets: cold.ColdSets
    warmup: int
    placement: Placement


@dataclass(frozen=True)
class Bench:
    """Where and how calls are timed, whichever they are."""

    instrument: Instrument
    how: Measuring
    device: Device
    cuda_graph: bool

    def timed(self, target: Target, calls: int, warmup: int) -> Placed:
        """`calls` samples of a target; its outputs hold poison until a call writes them."""
        arguments = (target.args, dict(target.kwargs))
        made = None if self.device.is_gpu else calls + warmup  # on a GPU more calls are made than those
        memory = {"cache_bytes": self.device.cache_bytes, "free_bytes": self.device.free_bytes()}
        sets = cold.prepare(arguments, target.outputs, self.how.cold_l2, calls=made, **memory)
        work = _work(tuple(map(target.bound, sets.sets)), self.instrument, sets.mode, self.cuda_graph, self.device)
        check.poison(target.outputs)
        if sets.used_once:
            work.evict()
        block_order.restore(self.device)
        with _range(target.name, self.device):
            samples = tuple(self.instrument.sample(work, calls, warmup))
        block_order.restore(self.device)
        counted = _clocks(work, statistics.median(samples))
        return Placed(target, work, sets, warmup, Placement(samples, counted, placements.addresses(target)))

    def seconds(self, target: Target) -> float:
        """What an untimed call takes of everybody's time."""
        start = time.perf_counter()
        if stopping.needs_trial(self.how):
            target()
            self.device.synchronize()
        return time.perf_counter() - start


Verify = Callable[[Target, Work], object]


def run(target: Target, measuring: Measuring, device: Device, *, cuda_graph: bool, verify: Verify) -> Timing:
    """Elsewhere first, so that the last timed call is the target's own; `verify` looks at each one's last answer."""
    chosen = instruments.choose(measuring.instrument, device)
    bench = Bench(chosen.instrument, measuring, device, cuda_graph)
    if cuda_graph:
        gc.collect()  # freed while another is captured, a graph ends the capture: an autotuner leaves some behind
    each = bench.seconds(target)
    sampling = Sampling(measuring, chosen.instrument.name, each, stopping.budget(measuring))
    placed = _placed(bench, target, sampling, verify)
    last, timed = placed[-1], tuple(one.placement for one in placed)
    seen = observe(last.work, timed)
    return Timing(
        samples=tuple(sample for placement in timed for sample in placement.samples),
        instrument=chosen.instrument.name,
        cold_l2=last.sets.mode,
        rotations=len(last.sets.sets),
        cuda_graph=cuda_graph,
        warmups=sum(one.warmup for one in placed) + stopping.needs_trial(measuring),
        stopped=sampling.stopped([placement.samples for placement in timed[:-1]]),
        fallback=chosen.fallback,
        notes=tuple(note for note in (last.sets.note, *seen.notes) if note),
        seen=seen,
        placements=timed,
    )


def _placed(bench: Bench, target: Target, sampling: Sampling, verify: Verify) -> list[Placed]:
    """All are kept until the last is timed: what were freed would be given to the next one."""
    placed: list[Placed] = []
    free = bench.device.free_bytes()
    while calls := sampling.elsewhere([one.placement.samples for one in placed]):
        if not placements.fits(target, free, bench.device.free_bytes(), len(placed)):
            break
        placed.append(bench.timed(target.elsewhere(), calls, sampling.warmup(first=not placed)))
        verify(placed[-1].target, placed[-1].work)
    placed.append(bench.timed(target, sampling.shares[-1], sampling.warmup(first=not placed)))
    verify(target, placed[-1].work)
    return placed


def _range(name: str, device: Device) -> AbstractContextManager[None]:
    """For profilers to find the timed calls by; a name may have braces, which torch would format."""
    return torch.cuda.nvtx.range("{}", name) if name and device.is_gpu else nullcontext()


def uses_graph(measuring: Measuring, device: Device, by_default: bool) -> bool:
    return device.is_gpu and (measuring.cuda_graph == "on" or (measuring.cuda_graph == "auto" and by_default))


def _work(calls: tuple[Call, ...], instrument: Instrument, cold_l2: str, graph: bool, device: Device) -> Work:
    """Events see launches: under a graph they time many calls at once, every rotation at least once."""
    flush = cold_l2 == "flush"
    if graph and instrument.name == "events" and not flush:
        rounds = -(-FEWEST_CALLS_IN_GRAPH // len(calls))
        return Work(calls, flush, device, graph_of=rounds * len(calls))
    return Work(graphs.capture(calls) if graph else calls, flush, device)


def _clocks(work: Work, each: float) -> Clocks | None:
    return clock_pass(work, each) if work.device.is_gpu and nvrtc.missing(work.device) is None else None


def observe(work: Work, timed: tuple[Placement, ...]) -> Observations:
    """What is seen beside the timed calls; nothing on a CPU, and a reason where a GPU's library is not there."""
    if not work.device.is_gpu:
        return Observations()
    blind = INSTRUMENTS["cupti"].missing(work.device)
    stopped = nvrtc.missing(work.device)
    counted = [placement.clocks for placement in timed if placement.clocks]
    return Observations(
        trace=None if blind else trace(work, statistics.median(timed[-1].samples)),
        clocks=clocks.joined(counted) if counted else None,
        telemetry=counted[-1].telemetry if counted else telemetry.read(work.device),
        notes=tuple(reason for reason in (blind, stopped) if reason),
    )
