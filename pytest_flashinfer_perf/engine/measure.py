"""Measurement: the time, the rates and the checked answer of a call. `measure` gives one in a script without pytest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from pytest_flashinfer_perf.checking.check import Check, Sample
from pytest_flashinfer_perf.engine.call import CallSpec, Reference
from pytest_flashinfer_perf.engine.fingerprint import Fingerprint
from pytest_flashinfer_perf.engine.instruments import INSTRUMENTS, Work
from pytest_flashinfer_perf.engine.observers import Observer
from pytest_flashinfer_perf.engine.stopping import CaseClock
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.engine.timing import NOT_TIMED, Timing, Verify, run, uses_graph
from pytest_flashinfer_perf.engine.verification import NOT_KEPT, CheckResult, Examination, Expected, Outputs
from pytest_flashinfer_perf.machine import builds, devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.rows.parts import Parts
from pytest_flashinfer_perf.rows.row import Stats
from pytest_flashinfer_perf.settings.settings import Checking, Measuring, MeasuringLike
from pytest_flashinfer_perf.spec.nested import tensors

NO_CHECKS, CHECKING = CheckResult(), Checking()


@dataclass(frozen=True)
class Measurement:
    """A timed call; times in seconds of device time, rates where the work was declared.

    With --perf-refcheck=only there are no times. An answer is wrong only if wrong ones are allowed.
    """

    timing: Timing
    device: Device
    flops: float | None = None
    bytes: float | None = None
    flops_dtype: str | None = None
    verdict: CheckResult = NO_CHECKS
    sample: Sample | None = None
    checking: Checking = CHECKING
    peak_memory_bytes: int | None = None

    @property
    def checks(self) -> tuple[Check, ...]:
        return self.verdict.checks

    @property
    def median(self) -> float:
        return self.timing.median

    @property
    def std(self) -> float:
        return self.timing.std

    @property
    def samples(self) -> tuple[float, ...]:
        return self.timing.samples

    @property
    def stats(self) -> Stats:
        return Stats.of(self.samples)

    @property
    def instrument(self) -> str:
        return self.timing.instrument

    @property
    def tflops(self) -> float | None:
        return None if self.flops is None else self.flops / self.median / 1e12

    @property
    def tb_per_sec(self) -> float | None:
        return None if self.bytes is None else self.bytes / self.median / 1e12


class TimeCalls(Protocol):
    """Times a target: one process by itself, as `alone` does, or several that make each call together."""

    def __call__(  # noqa: PLR0913 - one argument per part of a measurement
        self, target: Target, measuring: Measuring, device: Device, *, cuda_graph: bool, verify: Verify, spent: float
    ) -> Timing: ...


def alone(  # noqa: PLR0913 - one argument per part of a measurement
    target: Target,
    measuring: Measuring,
    device: Device,
    *,
    cuda_graph: bool,
    verify: Verify,
    observers: Sequence[Observer] = (),
    spent: float = 0.0,
) -> Timing:
    """Time the calls in this process. Observers look last, when outputs are no longer poisoned."""
    timing = run(target, measuring, device, cuda_graph=cuda_graph, verify=verify, observers=observers, spent=spent)
    traced = timing.observations.traced
    observations = {one.name: one.observed(target, device, timing.median, traced.get(one.name)) for one in observers}
    parts = Parts({name: one.part for name, one in observations.items() if one.part is not None})
    notes = dict.fromkeys((*timing.notes, *(note for one in observations.values() for note in one.notes)))
    return replace(timing, observations=replace(timing.observations, parts=parts), notes=tuple(notes))


def measure(  # noqa: PLR0913 - one argument per property of a call
    fn: Callable[..., object],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    flops: float | None = None,
    bytes: float | None = None,  # noqa: A002 - the usual name
    flops_dtype: str | None = None,
    reference: Reference = None,
    out: Outputs = None,
    measuring: MeasuringLike = None,
    checking: Checking | None = None,
    device: str | None = None,
    name: str = "",
) -> Measurement:
    """Time `fn(*args, **kwargs)` with a cold L2, and compare `out`, or what it returns, with a reference.

    `out` names the tensors that the call writes: they are filled with NaN first, and are not rotated as inputs. They
    are passed on as `out=` to a function that takes it, unless they are among its arguments already. `device` is needed
    if no argument is a tensor, `name` is that of the NVTX range around the timed calls, and `flops_dtype` is the type
    in which the FLOPs are computed, if that is not the type of the arguments.
    """
    call = CallSpec(fn, args, kwargs or {}, flops, bytes, flops_dtype, reference, out)
    return measure_call(call, Measuring().changed_by(measuring), checking or CHECKING, device=device, name=name)


def measure_call(  # noqa: PLR0913 - one argument per part of a measurement
    call: CallSpec,
    measuring: Measuring,
    checking: Checking = CHECKING,
    *,
    device: str | None = None,
    name: str = "",
    time_calls: TimeCalls = alone,
) -> Measurement:
    """Check and time what a description says; `device` is that of a call without tensors."""
    # What to call and where; what cannot be measured is refused here.
    target = call.target(name)
    computed_in = call.computed_in
    where = devices.find(_device_of(target) or device or "auto")

    # The answer to expect, then the check, the time, and the check of a timed call.
    graph = uses_graph(measuring, where, by_default=False)
    with case_clock() as clock, where.threads(measuring.cpu_threads):
        expected = Expected(()) if checking.off else call.expected(target)
        measured = measure_target(
            target, expected, measuring, checking, where, cuda_graph=graph, time_calls=time_calls, clock=clock
        )
    return replace(measured, flops=call.flops, bytes=call.bytes, flops_dtype=computed_in)


@contextmanager
def case_clock() -> Iterator[CaseClock]:
    """The host's clock of a case that begins, halted while one of FlashInfer's modules compiles."""
    clock = CaseClock(INSTRUMENTS["wall"].now)
    with builds.pausing(clock.halted):
        yield clock


def measure_target(  # noqa: PLR0913 - one argument per part of a measurement
    target: Target,
    expected: Expected,
    measuring: Measuring,
    checking: Checking,
    device: Device,
    *,
    cuda_graph: bool,
    time_calls: TimeCalls,
    clock: CaseClock,
) -> Measurement:
    """Check the answer, time the call, and check the answer of a timed call: a wrong answer never gets a time."""
    results: list[CheckResult] = []
    peak: int | None = None

    def keep(result: CheckResult) -> None:
        results.append(result if checking.allow_output_mismatch else result.raise_if_wrong())

    # The first answer, whose outputs were poisoned before.
    examined = Examination(target, expected, device, None if checking.off else Fingerprint(target))
    keep(examined.first())

    def verify(timed: Target, work: Work) -> None:
        """Check the last timed call; of calls in CUDA graphs, only the first one keeps what it returns."""
        nonlocal peak
        keep(examined.last(timed, NOT_KEPT if cuda_graph else work.last.returned))
        if timed is target:
            keep(examined.once_more(work.calls[0]))
        peak = _peak_memory(device)  # before observers look, who may let it begin anew

    # Without times, one more call by other inputs; else the times, each placement's last answer verified.
    if checking.only:
        keep(examined.once_more(target))
        timing = NOT_TIMED
    else:
        timing = time_calls(target, measuring, device, cuda_graph=cuda_graph, verify=verify, spent=clock.seconds)
    return Measurement(
        timing,
        device,
        verdict=sum(results, NO_CHECKS),
        sample=expected.sample,
        checking=checking,
        peak_memory_bytes=_peak_memory(device) if peak is None else peak,
    )


def _device_of(target: Target) -> str | None:
    """The device of the arguments: the GPU if one of them is there, since indices and lengths may be on the host."""
    names = [str(t.device) for t in tensors((target.args, dict(target.kwargs), target.outputs))]
    return next((device for device in names if device != "cpu"), names[0] if names else None)


def _peak_memory(device: Device) -> int | None:
    return torch.cuda.max_memory_allocated(device.torch) if device.is_gpu else None
