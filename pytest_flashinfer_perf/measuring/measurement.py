"""Measurement: what a timed call was, was worth, and answered. `measure` is the same for a script outside pytest."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking.check import Check
from pytest_flashinfer_perf.checking.sample import Sample
from pytest_flashinfer_perf.config.settings import Checking, Measuring
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measuring import changing, verification
from pytest_flashinfer_perf.measuring.verification import CheckResult, Examination, Expected, Outputs
from pytest_flashinfer_perf.spec import dtypes
from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.timing import extra, host
from pytest_flashinfer_perf.timing.cold import storage
from pytest_flashinfer_perf.timing.instruments import Work
from pytest_flashinfer_perf.timing.run import NOT_TIMED, Timing, run, uses_graph
from pytest_flashinfer_perf.timing.target import Target

NOTHING_SEEN, CHECKING = CheckResult(), Checking()
Reference = Outputs | Callable[[], Outputs]


@dataclass(frozen=True)
class Measurement:
    """A timed call; times in seconds of device time, rates where the work was declared.

    Nothing was timed where its answer alone was asked for; it is wrong only where that is allowed.
    """

    timing: Timing
    device: Device
    flops: float | None = None
    bytes: float | None = None
    flops_dtype: str | None = None
    verdict: CheckResult = NOTHING_SEEN
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


def measure(  # noqa: PLR0913 - what there is to say about a call
    fn: Callable[..., object],
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    flops: float | None = None,
    bytes: float | None = None,  # noqa: A002 - the word for it
    flops_dtype: str | None = None,
    reference: Reference = None,
    out: Outputs = None,
    measuring: Measuring | None = None,
    checking: Checking | None = None,
    device: str | None = None,
    name: str = "",
) -> Measurement:
    """Time `fn(*args, **kwargs)` with a cold L2, and check `out` (or what it returns) where a reference is given.

    `out` names the tensors that the call writes: they are filled with NaN first, and are not rotated as inputs. They
    are passed on as `out=` to a function that takes it, unless they are among its arguments already. `device` is for
    a call without tensors among its arguments, `name` for the NVTX range around the timed calls. `flops_dtype` is what
    the FLOPs are done in, where that is not the type of the arguments.
    """
    computed_in = dtypes.computed_in(flops_dtype, tensors((args, kwargs)))
    _verify_work(flops=flops, bytes=bytes)
    outputs = () if out is None else _tensors("out must be", out)
    passed_on = {"out": out} if outputs and _takes_out(fn, (args, kwargs), outputs) else {}
    target = Target(fn, args, {**(kwargs or {}), **passed_on}, outputs, name)
    where = devices.find(_device_of(target) or device or "auto")
    how, looked_at = measuring or Measuring(), checking or Checking()
    expected = Expected(()) if looked_at.off else _expected(reference, target)
    graph = uses_graph(how, where, by_default=False)
    measured = measure_target(target, expected, how, looked_at, where, cuda_graph=graph)
    return replace(measured, flops=flops, bytes=bytes, flops_dtype=computed_in)


def _verify_work(**declared: float | None) -> None:
    for name, value in declared.items():
        if value is not None and not (isinstance(value, Real) and 0 <= value <= sys.float_info.max):
            raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


def _tensors(must: str, given: object) -> tuple[Tensor, ...]:
    found = tuple(tensors(given))
    if not found:
        raise TypeError(f"{must} a tensor or several of them, got {type(given).__name__}")
    return found


def _expected(reference: Reference, target: Target) -> Expected:
    if reference is None:
        return Expected(())
    if not callable(reference):
        return Expected(_apart(_tensors("reference must be", reference), target))
    asked = partial(_asked, reference, target)
    changes = changing.of_inputs((target.args, dict(target.kwargs)), target.outputs)
    return Expected(asked(), again=partial(_again, asked), changes=tuple(changes))


def _asked(reference: Callable[[], Outputs], target: Target) -> tuple[Tensor, ...]:
    return _apart(_tensors("reference must return", reference()), target)


def _apart(answer: tuple[Tensor, ...], target: Target) -> tuple[Tensor, ...]:
    """What shares memory with the call's own tensors would change with them."""
    shared = {storage(t) for t in tensors((target.args, dict(target.kwargs), target.outputs))}
    return tuple(t.clone() if storage(t) in shared else t for t in answer)


def _again(asked: Callable[[], tuple[Tensor, ...]]) -> Expected | None:
    """None where it has no answer to changed inputs, as a factorisation may not."""
    try:
        return Expected(asked())
    except Exception:  # noqa: BLE001 - whatever it is, it had an answer to the inputs as they were
        return None


def measure_target(  # noqa: PLR0913 - all there is to know
    target: Target, expected: Expected, measuring: Measuring, checking: Checking, device: Device, *, cuda_graph: bool
) -> Measurement:
    """Check an answer, time the call, check the answer of a timed call: a wrong one is never recorded as fast."""
    settled: Callable[[CheckResult], CheckResult] = (
        (lambda seen: seen) if checking.allow_output_mismatch else CheckResult.right
    )
    examined = Examination(target, expected, device, {} if checking.off else verification.fingerprint(target))
    seen = [settled(examined.first())]
    more = extra.planned(measuring, device, cuda_graph=cuda_graph)
    slowed = more.behind(target)

    def verify(timed: Target, work: Work) -> None:
        """A graph's first call alone keeps what it returned."""
        seen.append(settled(examined.last(timed, None if cuda_graph else tuple(tensors(work.last.returned)))))
        if timed is slowed:
            seen.append(settled(examined.once_more(work.calls[0])))

    if checking.only:
        seen.append(settled(examined.once_more(target)))
        timing = NOT_TIMED
    else:
        timing = _on_host(slowed, device, run(slowed, measuring, device, cuda_graph=cuda_graph, verify=verify))
    return Measurement(
        timing,
        device,
        verdict=sum(seen, NOTHING_SEEN),
        sample=expected.sample,
        checking=checking,
        peak_memory_bytes=_peak_memory(device),
        planted=more.seconds,
    )


def _on_host(target: Target, device: Device, timing: Timing) -> Timing:
    """With what the call costs the host, which is timed last: its memory is the allocator's, and no longer poisoned."""
    launches = timing.seen.trace.launches if timing.seen.trace else None
    seen, why_not = host.measured(target, device, timing.median, launches)
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
    """Where the arguments are: on a GPU if one of them is, since indices and lengths may stay on the host."""
    seen = [str(t.device) for t in tensors((target.args, dict(target.kwargs), target.outputs))]
    return next((device for device in seen if device != "cpu"), seen[0] if seen else None)


def _peak_memory(device: Device) -> int | None:
    return torch.cuda.max_memory_allocated(device.torch) if device.is_gpu else None
