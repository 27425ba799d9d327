"""Reject impossible times. They are reported by a process that runs other people's code; this one does not."""

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
MARGIN = 0.5  # fraction of the shortest one seen, since another may be shorter


def fault(job: Job, timings: tuple[Timing, ...], waited: float) -> str | None:
    """The reason why these times are impossible, else None; `waited` is the time of the job by this process's clock."""
    if not timings:
        return None
    total = math.fsum(sample for timing in timings for sample in timing.samples)
    if not total <= waited:
        return f"impossible time: timed calls of {duration(total)} in a job that took {duration(waited)}"
    fastest, (least, reason) = min(timing.median for timing in timings), _least(job)
    if not fastest >= least:
        return f"impossible time: {duration(fastest)} per call, but {reason} takes at least {duration(least)}"
    return None


def _least(job: Job) -> tuple[float, str]:
    device = devices.find(job.device)
    instrument = instruments.choose(job.measuring.instrument, device).instrument.name
    roof = best_of(peaks.roofs(device).values())
    empty = (_empty_call_s(instrument, device), "a call that does nothing")
    return max(empty, (writing_s(job, device.cache_bytes, roof), "writing its outputs"))


@functools.cache
def _empty_call_s(instrument: str, device: Device) -> float:
    """The time of an empty call; on a GPU of the shortest kernel, since CUPTI sees only kernels."""
    call = torch.empty(1, device=device.torch).zero_ if device.is_gpu else _nothing
    samples = INSTRUMENTS[instrument].sample(Work((call,), flush=False, device=device), CALLS, WARMUP)
    return MARGIN * min(samples)


def _nothing() -> None:
    pass


def writing_s(job: Job, cache_bytes: int, roof: Peaks | None) -> float:
    """The time to write the outputs that do not fit into the cache; which inputs must be read is not known."""
    shapes = job.definition.get_output_shapes(job.workload.axes)
    sizes = zip(shapes, job.definition.torch_output_dtypes, strict=True)
    written = sum(math.prod(shape or ()) * dtype.itemsize for shape, dtype in sizes)
    return max(0, written - cache_bytes) / roof.bytes_per_s if roof else 0.0
