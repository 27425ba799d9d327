"""`bench_gpu_time` and `do_bench`: FlashInfer's and Triton's functions, with our measurement.

A program changes the line that imports them. Signatures and what is returned are theirs; how a call is timed is ours:
by CUPTI where it is, at several places in memory, with a cold L2. They have no argument for a reference, so no answer
is checked. In a test that has `perf` among its arguments the call is its row.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_flashinfer_perf.api import (
    Checking,
    FlashinferPerfError,
    Measurement,
    Measuring,
    devices,
    formatting,
    instruments,
)
from pytest_flashinfer_perf.engine.call import CallSpec
from pytest_flashinfer_perf.engine.measure import TimeCalls, alone, measure_call
from pytest_flashinfer_perf.spec.nested import tensors

__all__ = ["bench_gpu_time", "do_bench"]

TRIAL = 5  # calls, to know how many fit into a time
SUMMARIES: dict[str, Callable[[list[float]], float | list[float]]] = {
    "min": min,
    "max": max,
    "mean": statistics.mean,
    "median": statistics.median,
    "all": list,
}
INSTEAD = {
    "l2_flush_size_mb": "what is flushed is as large as this GPU's L2",
    "l2_flush_device": "the L2 that is flushed is that of the device which is timed",
    "sleep_after_run": "calls follow each other, and a throttled GPU shows in the clocks of a row",
    "num_iters_within_graph": "each call in a CUDA graph is timed by itself",
    "aggregate_op": "calls of several processes are timed together, by perf.time in a test with perf_ranks",
}


class CompatError(FlashinferPerfError, ValueError):
    """An argument of another project's function that has no meaning here."""


Timer = Callable[[CallSpec, Mapping[str, Any]], Measurement]


def unchecked(
    call: CallSpec, how: Measuring, device: str, name: str = "", time_calls: TimeCalls = alone
) -> Measurement:
    """Time a call without a check; by events if CUPTI cannot, as the original function would go on, too."""
    off = Checking(refcheck="off")
    timed = partial(measure_call, call, checking=off, device=device, name=name, time_calls=time_calls)
    try:
        return timed(how)
    except instruments.InstrumentError as error:
        measurement = timed(how.changed_by({"instrument": "events"}))
        return replace(
            measurement, timing=replace(measurement.timing, fallback=f"measured with events, not cupti: {error}")
        )


def _without_row(call: CallSpec, changes: Mapping[str, Any]) -> Measurement:
    return unchecked(call, Measuring().changed_by(changes), _device())


_timers: list[Timer] = [_without_row]  # of scripts; above it that of the test that runs


@contextmanager
def timed_by(timer: Timer) -> Iterator[None]:
    """Let a test's `perf` time these calls, which keeps the row."""
    _timers.append(timer)
    try:
        yield
    finally:
        _timers.remove(timer)


def bench_gpu_time(  # noqa: PLR0913, PLR0917 - the signature is FlashInfer's
    fn: Callable[..., object],
    dry_run_iters: int | None = None,
    repeat_iters: int | None = None,
    dry_run_time_ms: float = 25,
    repeat_time_ms: float = 100,
    l2_flush: bool | None = None,
    l2_flush_size_mb: int | None = None,
    l2_flush_device: str | None = None,
    sleep_after_run: bool = False,
    enable_cupti: bool = False,  # noqa: ARG001 - CUPTI is used where it is
    use_cuda_graph: bool = False,
    num_iters_within_graph: int = 10,
    input_args: tuple[Any, ...] = (),
    input_kwargs: Mapping[str, Any] | None = None,
    cold_l2_cache: bool = True,
    aggregate_op: Callable[..., Any] = max,
    *,
    args: tuple[Any, ...] | None = None,
    num_iters: int | None = None,
    rotate_buffers: bool | None = None,
) -> list[float] | tuple[float, float]:
    """The milliseconds of each timed call, as `flashinfer.testing.bench_gpu_time` returns them.

    Without `repeat_iters` calls are timed until the median is known, for at most `repeat_time_ms`. FlashInfer's guide
    has `args`, `num_iters` and `rotate_buffers` for `input_args`, `repeat_iters` and `cold_l2_cache`: a call with one
    of these gets what the guide's programs unpack, the median and the standard deviation.
    """
    _refuse(
        l2_flush_size_mb=l2_flush_size_mb is not None,
        l2_flush_device=l2_flush_device is not None,
        sleep_after_run=sleep_after_run,
        num_iters_within_graph=num_iters_within_graph != 10,
        aggregate_op=aggregate_op is not max,
    )
    call = CallSpec(fn, tuple(input_args if args is None else args), dict(input_kwargs or {}))
    is_cold = next(one for one in (rotate_buffers, l2_flush, cold_l2_cache) if one is not None)
    iters = repeat_iters if num_iters is None else num_iters
    how = {"cold_l2": "rotate" if is_cold else "none", "iters": iters}
    times = _milliseconds(call, dry_run_iters, dry_run_time_ms, repeat_time_ms, use_cuda_graph=use_cuda_graph, **how)
    by_guide = any(one is not None for one in (args, num_iters, rotate_buffers))
    return (statistics.median(times), statistics.pstdev(times)) if by_guide else times


def do_bench(  # noqa: PLR0913, PLR0917 - the signature is Triton's
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    grad_to_none: Sequence[Tensor] | None = None,
    quantiles: Sequence[float] | None = None,
    return_mode: str = "mean",
) -> float | list[float]:
    """Milliseconds, summarised as `triton.testing.do_bench` does it: one number, or a list of several quantiles."""
    if return_mode not in SUMMARIES:
        raise CompatError(f"return_mode is one of {', '.join(SUMMARIES)}, got {return_mode!r}")
    call = fn if grad_to_none is None else partial(_without_gradients, fn, grad_to_none)
    times = _milliseconds(CallSpec(call), None, warmup, rep, use_cuda_graph=False)
    if quantiles is None:
        return SUMMARIES[return_mode](times)
    shares = torch.tensor(quantiles, dtype=torch.float64)
    at_shares: list[float] = torch.tensor(times, dtype=torch.float64).quantile(shares).tolist()
    return at_shares[0] if len(at_shares) == 1 else at_shares


def _milliseconds(
    call: CallSpec,
    dry_run_iters: int | None,
    dry_run_ms: float,
    repeat_ms: float,
    *,
    use_cuda_graph: bool,
    **how: object,
) -> list[float]:
    """The milliseconds of each timed call; a warning at their caller's line says what else than kernels they have."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise CompatError("calls of several processes are timed together by perf.time, in a test with perf_ranks")
    warmup = _calls_in(dry_run_ms, call) if dry_run_iters is None else dry_run_iters
    graph = "on" if use_cuda_graph and torch.cuda.is_available() else "off"
    if _device() != "cpu" and not any(tensor.is_cuda for tensor in tensors((call.args, call.kwargs))):
        call = CallSpec(call)  # arguments on the host, as of a plan, do not say where the call runs
    measurement = _timers[-1](call, {"warmup": warmup, "max_time": repeat_ms / 1e3, "cuda_graph": graph, **how})
    if why := _beside_kernels(measurement):
        warnings.warn(f"pytest_flashinfer_perf.extensions.compat: {why}", stacklevel=3)
    return [sample * 1e3 for sample in measurement.samples]


def _beside_kernels(measurement: Measurement) -> str:
    timing = measurement.timing
    if timing.fallback or not measurement.device.is_gpu:
        return timing.fallback or "measured by the host's clock, there is no GPU here"
    if not (timing.host_bound and timing.busy):
        return ""
    busy, whole = map(formatting.duration, (statistics.median(timing.busy), timing.median))
    cure = "bench_gpu_time(..., use_cuda_graph=True)"
    return f"a kernel runs for {busy} of {whole}, then the GPU waits for launches, which CUPTI slows: {cure}"


def _refuse(**arguments: bool) -> None:
    for name, is_given in arguments.items():
        if is_given:
            raise CompatError(f"{name} means nothing here, leave it out: {INSTEAD[name]}")


def _device() -> str:
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"


def _calls_in(milliseconds: float, call: CallSpec) -> int:
    """The number of calls that fit into this time, at least one; the first may compile and does not count."""
    device = devices.find(_device())
    call()
    device.synchronize()
    start = time.perf_counter()
    for _ in range(TRIAL):
        call()
    device.synchronize()
    return max(1, math.floor(milliseconds / 1e3 * TRIAL / (time.perf_counter() - start)))


def _without_gradients(fn: Callable[[], object], of: Sequence[Tensor]) -> object:
    """Call a function that would add to these gradients; on a GPU forgetting them takes no time."""
    for tensor in of:
        tensor.grad = None
    return fn()
