"""Instruments: each takes a call and returns its durations in seconds, or the reason why it cannot measure here."""

from __future__ import annotations

import functools
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, NamedTuple, Protocol

import torch

from pytest_flashinfer_perf.engine import tracebacks
from pytest_flashinfer_perf.engine.cupti import TimedCalls, read_together
from pytest_flashinfer_perf.errors import FlashinferPerfError, in_one_line
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.machine.garbage import without_gc
from pytest_flashinfer_perf.machine.load import LoadWatch

Call = Callable[[], object]
OWN_CALLS = 6  # of bench_gpu_time, which it makes before those that are asked for
CUPTI_INSTALL = "pip install 'cupti-python>=13'"


class InstrumentError(FlashinferPerfError, RuntimeError):
    """The requested instrument cannot measure here."""


@dataclass
class Last:
    """Holds the value that the last call returned."""

    returned: object = None


@dataclass(frozen=True)
class Work:
    """The calls to time in rotation; with `flush` the cache is made cold before each.

    `graph_of` is the number of calls that the instrument captures in one CUDA graph, 0 for no graph.
    """

    calls: tuple[Call, ...]
    flush: bool
    device: Device
    graph_of: int = 0
    last: Last = field(default_factory=Last, compare=False)
    watch: LoadWatch = field(default_factory=LoadWatch, compare=False)

    @functools.cached_property
    def _turn(self) -> Iterator[Call]:
        return itertools.cycle(self.calls)

    def __call__(self) -> object:
        """Make the next call. A new batch continues after the last one, since data that was just read is not cold.

        The last answer is released first, so that the next one can use its memory.
        """
        self.last.returned = None
        self.last.returned = next(self._turn)()
        return self.last.returned

    def chill(self) -> None:
        """Make the cache cold, if rotation does not."""
        if self.flush:
            self.evict()

    def evict(self) -> None:
        """Read twice the cache's size; reading leaves no dirty lines to write back."""
        _twice_the_cache(self.device).sum()


class CallTime(NamedTuple):
    """The seconds that one call took, and those of them in which a kernel ran, if that is known."""

    seconds: float
    busy: float | None = None


class Instrument(Protocol):
    """`sample` makes `warmup` untimed and `count` timed calls; `now` is the clock for a case's budget, in seconds."""

    @property
    def name(self) -> str: ...

    def missing(self, device: Device) -> str | None: ...

    def sample(self, work: Work, count: int, warmup: int) -> list[CallTime]: ...

    def now(self) -> float: ...


@dataclass(frozen=True)
class BenchGpuTime:
    """`flashinfer.testing.bench_gpu_time`, without its fallback to another instrument."""

    name: str

    def missing(self, device: Device) -> str | None:
        bench = (capability.flashinfer("testing.bench_gpu_time"), _bench_gpu_time)
        needed = (capability.gpu(self.name), *bench, *((_cupti,) if self.name == "cupti" else ()))
        return capability.missing(needed, device)

    def sample(self, work: Work, count: int, warmup: int) -> list[CallTime]:
        if self.name != "cupti":
            return [CallTime(seconds) for seconds in self._spans(work, work, count, warmup)]
        from cupti import cupti

        timed = TimedCalls(cupti)
        with read_together(timed.completed):
            spans = self._spans(timed.with_time_noted(work), work, count, warmup)
        busy = timed.busy(spans) or itertools.repeat(None)
        return [CallTime(seconds, busy_seconds) for seconds, busy_seconds in zip(spans, busy, strict=False)]

    def now(self) -> float:
        return time.perf_counter()

    def _spans(self, call: Call, work: Work, count: int, warmup: int) -> list[float]:
        from flashinfer.testing import bench_gpu_time

        keywords = {
            "dry_run_iters": warmup,
            "repeat_iters": count,
            "enable_cupti": self.name == "cupti",
            "use_cuda_graph": bool(work.graph_of),
            "num_iters_within_graph": work.graph_of or 1,
            _flush_of(bench_gpu_time): work.flush,
        }
        with _no_fallback(self.name), _explained_errors():
            milliseconds = bench_gpu_time(call, **keywords)
        return [float(ms) / 1e3 for ms in milliseconds]


def _flush_of(bench_gpu_time: Callable[..., object]) -> str:
    """The parameter that makes the cache cold; FlashInfer 0.5 only knows the older name of the two."""
    return "cold_l2_cache" if capability.accepts(bench_gpu_time, "cold_l2_cache") else "l2_flush"


def _bench_gpu_time(_device: Device) -> str | None:
    """Require its parameters, which the first releases that have it do not have."""
    bench: Any = capability.api("testing.bench_gpu_time")
    absent = [name for name in ("enable_cupti", _flush_of(bench)) if not capability.accepts(bench, name)]
    if not absent:
        return None
    return (
        f"this flashinfer is too old: its bench_gpu_time has no {' and no '.join(absent)}; use --perf-instrument=wall"
    )


@contextmanager
def _no_fallback(instrument: str) -> Iterator[None]:
    """Raise if bench_gpu_time falls back to another instrument, of which it only warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        if "alling back" in str(warning.message):
            raise InstrumentError(f"bench_gpu_time did not measure with {instrument}: {warning.message}")
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


NO_SUCH_CALL = {
    "No kernel activities": "the call launched nothing on the GPU, as a view, a remembered answer or work on the host "
    "does; time the call that computes, or use --perf-instrument=wall",
    "Inconsistent kernel names": "the call did not launch the same kernels each time, so that its times cannot be "
    "compared: warm it up first, with --perf-warmup=N or by calls of your own",
}


@contextmanager
def _explained_errors() -> Iterator[None]:
    """Explain errors of bench_gpu_time itself; errors of the call pass through."""
    try:
        yield
    except Exception as error:
        if not tracebacks.raised_by_instrument(error):
            raise
        explanation = next((sentence for words, sentence in NO_SUCH_CALL.items() if words in str(error)), None)
        raise InstrumentError(explanation or f"bench_gpu_time: {in_one_line(error)}") from None


def _cupti(_device: Device) -> str | None:
    try:
        version = metadata.version("cupti-python")
    except metadata.PackageNotFoundError:
        return f"cupti needs cupti-python: {CUPTI_INSTALL}"
    if int(version.split(".")[0]) < 13:
        return f"cupti needs cupti-python 13 or later, this is {version}: {CUPTI_INSTALL}"
    return _attach_error()


@functools.cache
def _attach_error() -> str | None:
    """Try to attach CUPTI: in a container without the privilege only that fails, not the import."""
    try:
        from cupti import cupti

        cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
        cupti.activity_disable(cupti.ActivityKind.CONCURRENT_KERNEL)
        cupti.finalize()
    except Exception as error:  # noqa: BLE001 - whatever stops it is the reason
        return f"cupti cannot attach: {in_one_line(error)}"
    return None


@dataclass(frozen=True)
class Wall:
    """The host's clock around a call and its completion: the only instrument on a CPU; includes launches on a GPU."""

    name: str = "wall"

    def missing(self, device: Device) -> str | None:  # noqa: ARG002 - every device has a host
        return None

    def sample(self, work: Work, count: int, warmup: int) -> list[CallTime]:
        for _ in range(warmup):
            work()
        with work.watch.watched(), without_gc():
            return [CallTime(self._once(work)) for _ in range(count)]

    def now(self) -> float:
        return time.perf_counter()

    def _once(self, work: Work) -> float:
        work.chill()
        work.device.synchronize()
        start = time.perf_counter()
        work()
        work.device.synchronize()
        return time.perf_counter() - start


@functools.cache
def _twice_the_cache(device: Device) -> torch.Tensor:
    return torch.zeros(2 * device.cache_bytes // 4, dtype=torch.float32, device=device.torch)


INSTRUMENTS: dict[str, Instrument] = {i.name: i for i in (BenchGpuTime("cupti"), BenchGpuTime("events"), Wall())}


@dataclass(frozen=True)
class ChosenInstrument:
    """An instrument, and the reason if a better one cannot be used."""

    instrument: Instrument
    fallback: str = ""


def choose(name: str, device: Device) -> ChosenInstrument:
    """The named instrument, or an error; `auto` takes the best that works here."""
    if name != "auto":
        reason = INSTRUMENTS[name].missing(device)
        if reason:
            raise InstrumentError(f"--perf-instrument={name}: {reason}")
        return ChosenInstrument(INSTRUMENTS[name])
    if not device.is_gpu:
        return ChosenInstrument(INSTRUMENTS["wall"])
    reasons = {i.name: i.missing(device) for i in INSTRUMENTS.values()}
    best = next(i for i in INSTRUMENTS.values() if reasons[i.name] is None)
    return ChosenInstrument(
        best, "" if best.name == "cupti" else f"measured with {best.name}, not cupti: {reasons['cupti']}"
    )
