"""Measurement: what a timed call was, was worth, and answered. `measure` is the same for a script outside pytest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf import check, devices
from pytest_flashinfer_perf.check import Check, Tolerance, WrongAnswerError
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.settings import Measuring
from pytest_flashinfer_perf.timing import cold
from pytest_flashinfer_perf.timing.run import Target, Timing, run, uses_graph

Outputs = Tensor | Sequence[Tensor] | None
Reference = Outputs | Callable[[], "Tensor | Sequence[Tensor]"]


@dataclass(frozen=True)
class Measurement:
    """A timed call; times in seconds of device time, rates where the work was declared."""

    timing: Timing
    device: Device
    flops: float | None = None
    bytes: float | None = None
    checks: tuple[Check, ...] = ()
    peak_memory_bytes: int | None = None

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
    reference: Reference = None,
    out: Outputs = None,
    measuring: Measuring | None = None,
    device: str | None = None,
) -> Measurement:
    """Time `fn(*args, **kwargs)` with a cold L2, and check `out` (or what it returns) where a reference is given.

    `out` names the tensors that the call writes: they are filled with NaN first, and are not rotated as inputs. They
    are passed on as `out=` to a function that takes it, unless they are among its arguments already. `device` is for
    a call without tensors among its arguments.
    """
    passed_on = {"out": out} if out is not None and _takes_out(fn, (args, kwargs), as_tuple(out)) else {}
    target = Target(fn, args, {**(kwargs or {}), **passed_on}, as_tuple(out))
    where = devices.find(_device_of(target) or device or "auto")
    expected = Expected(as_tuple(reference() if callable(reference) else reference))
    how = measuring or Measuring()
    measured = measure_target(target, expected, how, where, cuda_graph=uses_graph(how, where, by_default=False))
    return replace(measured, flops=flops, bytes=bytes)


def _as_written(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs


@dataclass(frozen=True)
class Expected:
    """What a call should answer, how far it may be off, and what its outputs mean where they are encoded."""

    answer: tuple[Tensor, ...]
    tolerances: tuple[Tolerance, ...] = ()
    decoded: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = _as_written


def measure_target(
    target: Target, expected: Expected, measuring: Measuring, device: Device, *, cuda_graph: bool
) -> Measurement:
    """Check an answer, time the call, check the answer of a timed call: a wrong one is never recorded as fast."""
    check.poison(target.outputs)
    returned = target()
    device.synchronize()
    answer = target.outputs or as_tuple(returned if isinstance(returned, (Tensor, tuple, list)) else None)
    checks = _verified(answer, expected)

    def verify() -> None:
        if target.outputs:
            _verified(target.outputs, expected)

    timing = run(target, measuring, device, cuda_graph=cuda_graph, verify=verify)
    return Measurement(timing, device, checks=checks, peak_memory_bytes=_peak_memory(device))


def _verified(outputs: tuple[Tensor, ...], expected: Expected) -> tuple[Check, ...]:
    if not expected.answer:
        return ()
    actual, wanted = expected.decoded(outputs), expected.answer
    if len(actual) != len(wanted):
        raise WrongAnswerError(
            f"the reference has {len(wanted)} tensors, the call gave {len(actual)}: name them by out="
        )
    allowed = expected.tolerances or (None,) * len(wanted)
    checks = tuple(check.compare(a, e, t) for a, e, t in zip(actual, wanted, allowed, strict=True))
    wrong = [f"output {i}: {c.sentence}" for i, c in enumerate(checks) if c.rule]
    if wrong:
        raise WrongAnswerError("; ".join(wrong))
    return checks


def _takes_out(fn: Callable[..., object], arguments: Any, out: tuple[Tensor, ...]) -> bool:
    if any(given is written for given in cold.tensors(arguments) for written in out):
        return False
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # torch's own functions have no signature to read, and take out=
        return True
    return any(p.name == "out" or p.kind is p.VAR_KEYWORD for p in parameters)


def as_tuple(tensors: Outputs) -> tuple[Tensor, ...]:
    if tensors is None:
        return ()
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def _device_of(target: Target) -> str | None:
    """Where the arguments are: on a GPU if one of them is, since indices and lengths may stay on the host."""
    seen = [str(t.device) for t in cold.tensors((target.args, dict(target.kwargs), target.outputs))]
    return next((device for device in seen if device != "cpu"), seen[0] if seen else None)


def _peak_memory(device: Device) -> int | None:
    return torch.cuda.max_memory_allocated(device.torch) if device.is_gpu else None
