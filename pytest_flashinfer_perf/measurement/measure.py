"""Measurement: the time, the rates and the checked answer of a call. `measure` gives one in a script without pytest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking.check import Check, Sample
from pytest_flashinfer_perf.config.option import is_finite
from pytest_flashinfer_perf.config.settings import Asked, Checking, Measuring
from pytest_flashinfer_perf.kernel_timing import host, planted_work
from pytest_flashinfer_perf.kernel_timing.copies import plain, storage
from pytest_flashinfer_perf.kernel_timing.instruments import Work
from pytest_flashinfer_perf.kernel_timing.run import NOT_TIMED, Timing, Verify, run, uses_graph
from pytest_flashinfer_perf.kernel_timing.target import Target
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measurement import refusals, verification
from pytest_flashinfer_perf.measurement.fingerprint import Fingerprint
from pytest_flashinfer_perf.measurement.verification import NOT_KEPT, CheckResult, Examination, Expected, Outputs
from pytest_flashinfer_perf.ranks import joined
from pytest_flashinfer_perf.ranks import timing as together
from pytest_flashinfer_perf.spec import dtypes
from pytest_flashinfer_perf.spec.nested import tensors

NO_CHECKS, CHECKING = CheckResult(), Checking()
Reference = Outputs | Callable[[], Outputs]


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
    planted: float = 0.0

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
    def instrument(self) -> str:
        return self.timing.instrument

    @property
    def tflops(self) -> float | None:
        return None if self.flops is None else self.flops / self.median / 1e12

    @property
    def tb_per_sec(self) -> float | None:
        return None if self.bytes is None else self.bytes / self.median / 1e12


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
    measuring: Asked = None,
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
    refusals.refuse_arguments((args, kwargs))
    computed_in = dtypes.computed_in(flops_dtype, tensors((args, kwargs)))
    _verify_work(flops=flops, bytes=bytes)
    outputs = () if out is None else _tensors("out must be", out)
    passed_on = {"out": out} if outputs and _takes_out(fn, (args, kwargs), outputs) else {}
    given = {**(kwargs or {}), **passed_on}
    target = Target(fn, args, given, outputs, name, obstacle=refusals.obstacle((args, given, outputs)))
    where = devices.find(_device_of(target) or device or "auto")
    measuring, checking = Measuring().changed_by(measuring), checking or Checking()
    expected = Expected(()) if checking.off else _expected(reference, target)
    graph = uses_graph(measuring, where, by_default=False)
    measured = measure_target(target, expected, measuring, checking, where, cuda_graph=graph)
    return replace(measured, flops=flops, bytes=bytes, flops_dtype=computed_in)


def _verify_work(**declared: float | None) -> None:
    for name, value in declared.items():
        if value is not None and not is_finite(value):
            raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


def _tensors(must: str, given: object) -> tuple[Tensor, ...]:
    found = tuple(tensors(given))
    if not found:
        raise TypeError(f"{must} a tensor or several of them, got {type(given).__name__}")
    refusals.refuse_tensors(must.partition(" ")[0], given)
    return found


def _expected(reference: Reference, target: Target) -> Expected:
    if reference is None:
        return Expected(())
    if not callable(reference):
        return Expected(_apart(_tensors("reference must be", reference), target))
    answer = partial(_answer, reference, target)
    changes = verification.changes_of_inputs((target.args, dict(target.kwargs)), target.outputs)
    return Expected(answer(), again=partial(_again, answer), changes=tuple(changes))


def _answer(reference: Callable[[], Outputs], target: Target) -> tuple[Tensor, ...]:
    return _apart(_tensors("reference must return", reference()), target)


def _apart(answer: tuple[Tensor, ...], target: Target) -> tuple[Tensor, ...]:
    """Copy tensors of the answer that share memory with those of the call, which would change them."""
    shared = {storage(t) for t in tensors((target.args, dict(target.kwargs), target.outputs))}
    return tuple(plain(t).clone() if storage(t) in shared else plain(t) for t in answer)


def _again(answer: Callable[[], tuple[Tensor, ...]]) -> Expected | None:
    """The answer to changed inputs; None if the reference fails for them, as a factorisation may."""
    try:
        return Expected(answer())
    except Exception:  # noqa: BLE001 - it succeeded for the original inputs
        return None


def measure_target(  # noqa: PLR0913 - one argument per part of a measurement
    target: Target, expected: Expected, measuring: Measuring, checking: Checking, device: Device, *, cuda_graph: bool
) -> Measurement:
    """Check the answer, time the call, and check the answer of a timed call: a wrong answer never gets a time."""
    results: list[CheckResult] = []

    def record(result: CheckResult) -> None:
        results.append(result if checking.allow_output_mismatch else result.raise_if_wrong())

    examined = Examination(target, expected, device, None if checking.off else Fingerprint(target))
    record(examined.first())
    more = planted_work.planned(measuring, device, cuda_graph=cuda_graph)
    slowed = more.behind(target)

    def verify(timed: Target, work: Work) -> None:
        """Check the last timed call; of calls in CUDA graphs, only the first one keeps what it returns."""
        record(examined.last(timed, NOT_KEPT if cuda_graph else work.last.returned))
        if timed is slowed:
            record(examined.once_more(work.calls[0]))

    if checking.only:
        record(examined.once_more(target))
        timing = NOT_TIMED
    else:
        timing = _timed(slowed, measuring, device, cuda_graph=cuda_graph, verify=verify)
    return Measurement(
        timing,
        device,
        verdict=sum(results, NO_CHECKS),
        sample=expected.sample,
        checking=checking,
        peak_memory_bytes=_peak_memory(device),
        planted=more.seconds,
    )


def _timed(target: Target, measuring: Measuring, device: Device, *, cuda_graph: bool, verify: Verify) -> Timing:
    """By this process alone, or together with the other ranks of its group."""
    ranks = joined.here()
    if ranks is not None:
        return together.run(ranks, target, measuring, cuda_graph=cuda_graph, verify=verify)
    return _on_host(target, device, run(target, measuring, device, cuda_graph=cuda_graph, verify=verify))


def _on_host(target: Target, device: Device, timing: Timing) -> Timing:
    """With what the call costs the host, which is timed last: its memory is the allocator's, and no longer poisoned."""
    seen, why_not = host.measured(target, device, timing.median, timing.seen.calls)
    notes = timing.notes if why_not in ("", *timing.notes) else (*timing.notes, why_not)
    return replace(timing, seen=replace(timing.seen, host=seen), notes=notes)


def _takes_out(fn: Callable[..., object], arguments: Any, out: tuple[Tensor, ...]) -> bool:
    if any(given is written for given in tensors(arguments) for written in out):
        return False
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # torch's own functions have no signature to read, and take out=
        return True
    return any(p.name == "out" or p.kind is p.VAR_KEYWORD for p in parameters)


def _device_of(target: Target) -> str | None:
    """The device of the arguments: the GPU if one of them is there, since indices and lengths may be on the host."""
    seen = [str(t.device) for t in tensors((target.args, dict(target.kwargs), target.outputs))]
    return next((device for device in seen if device != "cpu"), seen[0] if seen else None)


def _peak_memory(device: Device) -> int | None:
    return torch.cuda.max_memory_allocated(device.torch) if device.is_gpu else None
