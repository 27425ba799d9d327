"""Time a call: as many placements as needed, each with cold argument sets and CUDA graphs; then trace it."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.engine import clocks, cold, graphs, instruments, placements, stopping
from pytest_flashinfer_perf.engine.clocks import Clocks, clock_pass
from pytest_flashinfer_perf.engine.cupti import Recorder, Trace, attached, summarise
from pytest_flashinfer_perf.engine.instruments import (
    INSTRUMENTS,
    Call,
    CallTime,
    ChosenInstrument,
    Instrument,
    InstrumentError,
    Work,
)
from pytest_flashinfer_perf.engine.observers import Observer, OwnRoof
from pytest_flashinfer_perf.engine.placements import PlacedSamples
from pytest_flashinfer_perf.engine.stopping import Sampling
from pytest_flashinfer_perf.engine.target import Restoration, Target, restoration_for
from pytest_flashinfer_perf.machine import load, nvrtc, provenance
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.machine.load import Contention
from pytest_flashinfer_perf.machine.provenance import Telemetry
from pytest_flashinfer_perf.rows import scatter
from pytest_flashinfer_perf.settings.settings import Measuring

FEW_LAUNCHES, GAPS = 10, 1.5
FEWEST_CALLS_IN_GRAPH = 10
TRACED_CALLS = 3
OTHER_CALLS = instruments.OWN_CALLS + clocks.ALL_CALLS + TRACED_CALLS  # of a placement, beside warm-ups and timed calls


@dataclass(frozen=True)
class Observations:
    """Facts about a call beside its times; observers have `traced`, and in the end `parts` of the row, by name."""

    trace: Trace | None = None
    clocks: Clocks | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    notes: tuple[str, ...] = ()
    traced: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    roof: OwnRoof | None = None  # None for the device's


@dataclass(frozen=True)
class Timing:
    """Samples in seconds, and how they were measured."""

    samples: tuple[float, ...]
    instrument: str
    cold_l2: str
    rotations: int
    cuda_graph: bool
    warmups: int = 0
    stopped: str = "asked"
    notes: tuple[str, ...] = ()
    fallback: str = ""
    observations: Observations = field(default_factory=Observations)
    placements: tuple[PlacedSamples, ...] = ()
    contention: Contention | None = None  # by the host's clock
    cpu_threads: int | None = None  # on a CPU

    @property
    def median(self) -> float:
        if not self.samples:
            raise RuntimeError("nothing was timed: --perf-refcheck=only checks answers alone")
        return statistics.median(self.samples)

    @property
    def busy(self) -> tuple[float, ...]:
        """The seconds of each sample in which a kernel ran; empty where that is not known of all."""
        seconds = tuple(busy for placement in self.placements for busy in placement.busy)
        return seconds if len(seconds) == len(self.samples) else ()

    @property
    def std(self) -> float:
        return statistics.stdev(self.samples) if len(self.samples) > 1 else 0.0

    @property
    def spread(self) -> float | None:
        return scatter.spread(self.samples)

    @property
    def noisy(self) -> bool:
        loaded = self.contention is not None and self.contention.is_loaded
        return loaded or scatter.is_noisy(self.samples, self.instrument)

    @property
    def host_bound(self) -> bool | None:
        """Whether kernels wait for their launches, so that the host's time is measured; None without a trace."""
        trace = self.observations.trace
        if trace is None:
            return None
        waits = trace.span_s > GAPS * trace.busy_s or (trace.launches > FEW_LAUNCHES and self.noisy)
        return trace.launches > 1 and waits and not self.cuda_graph


NOT_TIMED = Timing((), "none", "none", 0, cuda_graph=False)


@dataclass(frozen=True)
class TimedPlacement:
    """A timed placement, with what is needed to call it again."""

    target: Target
    work: Work
    sets: cold.ColdSets
    warmup: int
    placement: PlacedSamples


@dataclass(frozen=True)
class Bench:
    """The instrument, options and device with which calls are timed."""

    instrument: Instrument
    how: Measuring
    device: Device
    cuda_graph: bool
    cycles: bool = True

    def time_placement(self, target: Target, calls: int, warmup: int) -> TimedPlacement:
        """Take `calls` samples of a target, with outputs poisoned until a call writes them."""
        # Cold: copies of the arguments to rotate, or a cache to flush, so that no call finds its data in the L2.
        arguments = (target.args, dict(target.kwargs))
        sets = cold.prepare(
            arguments,
            target.outputs,
            self.how.cold_l2,
            cache_bytes=self.device.cache_bytes,
            free_bytes=self.device.free_bytes(),
            calls=self._all_calls(calls + warmup),
            on_gpu=self.device.is_gpu,
            obstacle=target.obstacle,
        )

        # Ready: the calls, in CUDA graphs where these are asked for, and NaN where an answer will be.
        work = _work(tuple(map(target.bound, sets.sets)), self.instrument, sets.mode, self.cuda_graph, self.device)
        check.poison(target.outputs)
        if sets.just_written:
            work.evict()

        # Timed.
        reset_block_order(self.device)
        with _range(target.name, self.device):
            sampled = tuple(self._sample(work, calls, warmup, restoration_for(target, sets)))
        reset_block_order(self.device)

        # Clocked: a few more calls, for their SM cycles.
        samples = tuple(one.seconds for one in sampled)
        busy = tuple(one.busy for one in sampled if one.busy is not None)
        clocked = _clocks(work, statistics.median(samples)) if self.cycles else None
        busy_of_all = busy if len(busy) == len(samples) else ()
        return TimedPlacement(
            target, work, sets, warmup, PlacedSamples(samples, busy_of_all, clocked, placements.addresses(target))
        )

    def _all_calls(self, count: int) -> int | None:
        """Add the calls of a GPU's instruments; None where CUDA events replay whole rotations, or ranks wait."""
        if not self.device.is_gpu:
            return count
        can_be_counted = self.cycles and not (self.cuda_graph and self.instrument.name == "events")
        return count + OTHER_CALLS if can_be_counted else None

    def _sample(self, work: Work, calls: int, warmup: int, restore: Restoration | None) -> Iterator[CallTime]:
        """Sample the calls, in parts if they change inputs: before each part these are restored, outside the time."""
        if restore is None:
            yield from self.instrument.sample(work, calls, warmup)
            return
        for part in restore.parts(calls):
            restore()
            work.evict()  # what was put back is in the cache
            yield from self.instrument.sample(work, part, warmup)
            warmup = 0
        restore()


Verify = Callable[[Target, Work], object]


@dataclass(frozen=True)
class Conditions:
    """What differs where a call is made by several processes together: each has to decide as the others do."""

    choose: Callable[[str, Device], ChosenInstrument] = instruments.choose
    observe: Callable[[TimedPlacement, tuple[PlacedSamples, ...]], Observations] | None = None
    cycles: bool = True  # they would contain the wait for other processes


def run(  # noqa: PLR0913 - one argument per part of a measurement
    target: Target,
    measuring: Measuring,
    device: Device,
    *,
    cuda_graph: bool,
    verify: Verify,
    observers: Sequence[Observer] = (),
    conditions: Conditions = Conditions(),
    spent: float = 0.0,
) -> Timing:
    """Time other placements first, so that the last timed call is the target's; `verify` checks each last answer.

    The case has `spent` these seconds of its wall time before.
    """
    # The instrument.
    chosen = conditions.choose(measuring.instrument, device)
    bench = Bench(chosen.instrument, measuring, device, cuda_graph, conditions.cycles)
    if cuda_graph:
        gc.collect()  # a graph that is freed during a capture ends it; autotuners leave such graphs behind

    # Pilot: one untimed call, whose length decides how many calls and placements there is time for.
    first, seconds_per_call = _pilot(bench, target)
    budget = stopping.budget(measuring, chosen.instrument.now, spent)
    sampling = Sampling(measuring, chosen.instrument.name, seconds_per_call, budget)

    # Timed: placements at other addresses, and then the caller's own.
    timings = _time_placements(bench, target, sampling, verify, first)
    last, placed_samples = timings[-1], tuple(one.placement for one in timings)

    # Observed: what is known of the last placement beside its times, and what else the machine did.
    observations = (conditions.observe or partial(_observe, observers))(last, placed_samples)
    contention = load.during([one.work.watch for one in timings])

    # Described: the samples of all placements, and how they were taken.
    return Timing(
        samples=tuple(sample for placement in placed_samples for sample in placement.samples),
        instrument=chosen.instrument.name,
        cold_l2=last.sets.mode,
        rotations=len(last.sets.sets),
        cuda_graph=cuda_graph,
        warmups=_untimed(bench, timings),
        stopped=sampling.stopped([placement.precision_samples for placement in placed_samples[:-1]]),
        fallback=chosen.fallback,
        notes=tuple(note for note in (last.sets.note, *observations.notes, contention and contention.unknown) if note),
        observations=observations,
        placements=placed_samples,
        contention=contention,
        cpu_threads=None if device.is_gpu else torch.get_num_threads(),
    )


def _pilot(bench: Bench, target: Target) -> tuple[list[TimedPlacement], float]:
    """Measure the wall-clock seconds of an untimed call, or of a placement of one call if all calls are timed."""
    timings, start = [], bench.instrument.now()
    if stopping.makes_trial(bench.how):
        target()
        bench.device.synchronize()
    elif bench.how.iters is None:
        timings = [bench.time_placement(target.at_new_addresses(), 1, 0)]
    return timings, bench.instrument.now() - start


def _time_placements(
    bench: Bench, target: Target, sampling: Sampling, verify: Verify, first: list[TimedPlacement]
) -> list[TimedPlacement]:
    """Time all placements. Each is kept until the last is timed; freed memory would be used for the next one."""
    timings, free = list(first), bench.device.free_bytes()

    # Other addresses, until the time is precise or up.
    while calls := sampling.next_placement_calls([one.placement.precision_samples for one in timings]):
        if not placements.fits(target, free, bench.device.free_bytes(), len(timings)):
            break
        warmup = sampling.warmup(_untimed(bench, timings), len(timings))
        timings.append(bench.time_placement(target.at_new_addresses(), calls, warmup))
        verify(timings[-1].target, timings[-1].work)

    # The caller's own.
    calls = sampling.last_placement_calls([one.placement.precision_samples for one in timings])
    timings.append(
        bench.time_placement(target, calls, sampling.warmup(_untimed(bench, timings), len(timings), last=True))
    )
    verify(target, timings[-1].work)
    return timings


def _untimed(bench: Bench, timings: Sequence[TimedPlacement]) -> int:
    return sum(one.warmup for one in timings) + stopping.makes_trial(bench.how)


def _range(name: str, device: Device) -> AbstractContextManager[None]:
    """An NVTX range around the timed calls for profilers; names may have braces, which torch would format."""
    return torch.cuda.nvtx.range("{}", name) if name and device.is_gpu else nullcontext()


def uses_graph(measuring: Measuring, device: Device, by_default: bool) -> bool:
    """Whether calls are replayed from CUDA graphs; raises InstrumentError if that is asked for on a CPU."""
    if measuring.cuda_graph == "on" and not device.is_gpu:
        raise InstrumentError("--perf-cuda-graph=on needs an NVIDIA GPU, this run is on the CPU")
    return device.is_gpu and (measuring.cuda_graph == "on" or (measuring.cuda_graph == "auto" and by_default))


def _work(calls: tuple[Call, ...], instrument: Instrument, cold_l2: str, graph: bool, device: Device) -> Work:
    """The calls to time. CUDA events include launches, so under graphs they time several whole rotations at once."""
    flush = cold_l2 == "flush"
    if graph and instrument.name == "events" and not flush:
        rounds = -(-FEWEST_CALLS_IN_GRAPH // len(calls))
        return Work(calls, flush, device, graph_of=rounds * len(calls))
    return Work(graphs.capture(calls) if graph else calls, flush, device)


def _clocks(work: Work, seconds_per_call: float) -> Clocks | None:
    has_clocks = work.device.is_gpu and nvrtc.missing(work.device) is None
    return clock_pass(work, seconds_per_call) if has_clocks else None


def _observe(observers: Sequence[Observer], last: TimedPlacement, timed: tuple[PlacedSamples, ...]) -> Observations:
    """Observe the call beside its times: trace, clocks, telemetry, what observers trace; nothing on a CPU."""
    device = last.work.device
    if not device.is_gpu:
        return Observations()
    no_cupti = INSTRUMENTS["cupti"].missing(device)
    no_nvrtc = nvrtc.missing(device)
    call_trace, traced = (None, {}) if no_cupti else _trace(observers, last, device)
    clocked = [placement.clocks for placement in timed if placement.clocks]
    return Observations(
        trace=call_trace,
        clocks=clocks.join(clocked) if clocked else None,
        telemetry=clocked[-1].telemetry if clocked else provenance.read(device),
        notes=tuple(reason for reason in (no_cupti, no_nvrtc) if reason),
        traced=traced,
    )


def _trace(observers: Sequence[Observer], last: TimedPlacement, device: Device) -> tuple[Trace | None, dict[str, Any]]:
    """Trace the timed call, then let observers look at an eager one, with CUPTI attached once."""
    from cupti import cupti

    with attached(cupti, device.synchronize) as recorder:
        call_trace = trace(recorder, last.work, statistics.median(last.placement.samples))
        return call_trace, {one.name: one.traced(recorder, last.target) for one in observers}


def trace(recorder: Recorder, work: Work, seconds_per_call: float) -> Trace | None:
    """Trace the last of a few calls, since the first one meets an idle device and is slower than timed calls."""
    steps = (work.chill, work) * stopping.fitting(TRACED_CALLS, seconds_per_call)
    return summarise([recorder.of(step) for step in steps][-1])


# Reset the order in which a GPU assigns the blocks of a launch to its SMs. The order is left over from earlier
# launches, kernels that fill the GPU exactly preserve it, and some of them (multi-head latent attention on an H200,
# by 5 %) are faster in one order than in another. A launch of a few blocks on an idle GPU always leads to the same
# order; one that fills the GPU does not (docs/measurement.md).

BLOCKS, THREADS = 9, 32  # found by experiment: 8 blocks change nothing, 66 leave it as it was


def reset_block_order(device: Device) -> None:
    """Reset the order; it does nothing on a CPU, or if small kernels cannot be compiled."""
    if not device.is_gpu or nvrtc.missing(device):
        return
    device.synchronize()
    nvrtc.kernel(clocks.SOURCE, "nothing", device)(BLOCKS, THREADS, 0)
    device.synchronize()
