"""One call, timed: cold argument sets, CUDA graph, samples until there are enough, then trace and clock pass."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf import check, scatter
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.settings import Measuring
from pytest_flashinfer_perf.timing import cold, graphs, instruments, nvrtc, stopping, telemetry
from pytest_flashinfer_perf.timing.clocks import Clocks, clock_pass
from pytest_flashinfer_perf.timing.instruments import INSTRUMENTS, Call, Instrument, Work
from pytest_flashinfer_perf.timing.telemetry import Telemetry
from pytest_flashinfer_perf.timing.trace import Trace, trace

FEW_LAUNCHES, GAPS = 10, 1.5
FEWEST_CALLS_IN_GRAPH = 10


@dataclass(frozen=True)
class Target:
    """A function, its arguments, those of their tensors that it writes, and what a profiler shows it as."""

    function: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[Tensor, ...] = ()
    name: str = ""

    def bound(self, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> Call:
        """The function with one set of arguments, for the instrument to call."""
        args, kwargs = arguments
        return lambda: self.function(*args, **kwargs)

    def __call__(self) -> object:
        return self.function(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Seen:
    trace: Trace | None = None
    clocks: Clocks | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)
    notes: tuple[str, ...] = ()


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
    seen: Seen = field(default_factory=Seen)

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


def run(
    target: Target, measuring: Measuring, device: Device, *, cuda_graph: bool, verify: Callable[[Work], object]
) -> Timing:
    """`verify` looks at the answer of the last timed call; outputs hold poison until a timed call writes them."""
    chosen = instruments.choose(measuring.instrument, device)
    sets = _cold(target, measuring, device)
    work = _work(tuple(map(target.bound, sets.sets)), chosen.instrument, sets.mode, cuda_graph, device)
    check.poison(target.outputs)
    if sets.used_once:
        work.evict()
    with _range(target.name, device):
        sampled = stopping.collect(
            lambda count, warmup: chosen.instrument.sample(work, count, warmup),
            work.try_once,
            measuring,
            stopping.budget(measuring),
        )
    verify(work)
    seen = observe(work, statistics.median(sampled.samples))
    return Timing(
        samples=sampled.samples,
        instrument=chosen.instrument.name,
        cold_l2=sets.mode,
        rotations=len(sets.sets),
        cuda_graph=cuda_graph,
        warmups=sampled.warmups,
        stopped=sampled.stopped,
        fallback=chosen.fallback,
        notes=tuple(note for note in (sets.note, *seen.notes) if note),
        seen=seen,
    )


def _cold(target: Target, measuring: Measuring, device: Device) -> cold.ColdSets:
    """On a GPU more calls are made than those that are timed."""
    return cold.prepare(
        (target.args, dict(target.kwargs)),
        target.outputs,
        measuring.cold_l2,
        cache_bytes=device.cache_bytes,
        free_bytes=device.free_bytes(),
        calls=None if device.is_gpu else stopping.most_calls(measuring),
    )


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


def observe(work: Work, each: float) -> Seen:
    """What the passes after the timed calls see, of calls that take `each` seconds.

    Nothing on a CPU, and a reason where a GPU's library is not there.
    """
    if not work.device.is_gpu:
        return Seen()
    blind = INSTRUMENTS["cupti"].missing(work.device)
    stopped = nvrtc.missing(work.device)
    power: list[Telemetry] = []

    def watch() -> None:
        power.append(telemetry.read(work.device))

    return Seen(
        trace=None if blind else trace(work, each),
        clocks=None if stopped else clock_pass(work, each, watch),
        telemetry=power[0] if power else telemetry.read(work.device),
        notes=tuple(reason for reason in (blind, stopped) if reason),
    )
