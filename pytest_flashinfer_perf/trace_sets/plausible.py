"""Times that cannot be. The process that reports them has run other people's code; this one has not."""

from __future__ import annotations

import functools
import math

import torch

from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measuring import peaks
from pytest_flashinfer_perf.runs.formatting import duration
from pytest_flashinfer_perf.spec.cost import Peaks, best_of
from pytest_flashinfer_perf.timing import instruments
from pytest_flashinfer_perf.timing.instruments import INSTRUMENTS, Work
from pytest_flashinfer_perf.timing.run import Timing
from pytest_flashinfer_perf.trace_sets.child import Job

CALLS, WARMUP = 30, 5
MARGIN = 0.5  # of the shortest that was seen: another one may be shorter


def fault(job: Job, timings: tuple[Timing, ...], waited: float) -> str | None:
    """`waited` is the time from the question to the answer, by this process's clock."""
    if not timings:
        return None
    total = math.fsum(sample for timing in timings for sample in timing.samples)
    if not total <= waited:
        return f"its time cannot be: timed calls of {duration(total)} in a process that had {duration(waited)}"
    fastest, (least, reason) = min(timing.median for timing in timings), _least(job)
    if not fastest >= least:
        return f"its time cannot be: {duration(fastest)} a call, and {reason} takes at least {duration(least)}"
    return None


def _least(job: Job) -> tuple[float, str]:
    device = devices.find(job.device)
    instrument = instruments.choose(job.measuring.instrument, device).instrument.name
    roof = best_of(peaks.roofs(device).values())
    empty = (_of_an_empty_call(instrument, device), "a call that does nothing")
    return max(empty, (of_writing(job, device.cache_bytes, roof), "writing its outputs"))


@functools.cache
def _of_an_empty_call(instrument: str, device: Device) -> float:
    """The shortest kernel on a GPU: where nothing is launched there is nothing to see."""
    call = torch.empty(1, device=device.torch).zero_ if device.is_gpu else _nothing
    samples = INSTRUMENTS[instrument].sample(Work((call,), flush=False, device=device), CALLS, WARMUP)
    return MARGIN * min(samples)


def _nothing() -> None:
    pass


def of_writing(job: Job, cache_bytes: int, roof: Peaks | None) -> float:
    """What of the outputs does not stay in the cache; no definition says how much of its inputs has to be read."""
    shapes = job.definition.get_output_shapes(job.workload.axes)
    sizes = zip(shapes, job.definition.torch_output_dtypes, strict=True)
    written = sum(math.prod(shape or ()) * dtype.itemsize for shape, dtype in sizes)
    return max(0, written - cache_bytes) / roof.bytes_per_s if roof else 0.0
