"""Calls a function to look at its answer: outputs that nobody wrote, inputs that somebody did, answers of before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf import check
from pytest_flashinfer_perf.check import Check, Tolerance, WrongAnswerError
from pytest_flashinfer_perf.devices import Device
from pytest_flashinfer_perf.sample import Sample
from pytest_flashinfer_perf.timing.cold import tensors
from pytest_flashinfer_perf.timing.run import Target

COLUMNS = 1024
Outputs = Tensor | Sequence[Tensor] | None


def as_tuple(outputs: Outputs) -> tuple[Tensor, ...]:
    if outputs is None:
        return ()
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _as_written(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs


@dataclass(frozen=True)
class Expected:
    """What a call should answer, how far it may be off, what its outputs mean, and which rows of them are looked at."""

    answer: tuple[Tensor, ...]
    tolerances: tuple[Tolerance, ...] = ()
    decoded: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = _as_written
    sample: Sample | None = None
    turned: Turned | None = None


@dataclass(frozen=True)
class Turned:
    """The same problem with some inputs changed where they are: whoever answers as before has not read them.

    `turn` changes them, and a second time changes them back; `expected` is what the call should answer in between.
    """

    turn: Callable[[], None]
    expected: Callable[[], Expected]


@dataclass(frozen=True)
class Verdict:
    """What was seen of one or more calls: a comparison for each output, and what is wrong."""

    checks: tuple[Check, ...] = ()
    faults: tuple[str, ...] = ()

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(self.checks + other.checks, self.faults + other.faults)

    def right(self) -> Verdict:
        """Itself; a wrong answer is an error."""
        if self.faults:
            raise WrongAnswerError("\n".join(self.faults))
        return self


def look(target: Target, expected: Expected, device: Device) -> Verdict:
    """Call once, and if that is right, a second time where something can be turned."""
    before = fingerprint(target)
    seen, returned = _called(target, expected, device)
    if expected.turned is not None and not seen.faults:
        seen += _turned(target, expected.turned, device)
    return seen + unchanged(target, before, returned) if expected.answer else seen


def _called(target: Target, expected: Expected, device: Device) -> tuple[Verdict, tuple[Tensor, ...]]:
    check.poison(target.outputs)
    returned = target()
    device.synchronize()
    answer = target.outputs or as_tuple(returned if isinstance(returned, (Tensor, tuple, list)) else None)
    return compared(answer, expected), tuple(tensors(returned))


def _turned(target: Target, turned: Turned, device: Device) -> Verdict:
    turned.turn()
    try:
        seen, _ = _called(target, turned.expected(), device)
    finally:
        turned.turn()
    return Verdict(seen.checks, tuple(f"after its activations were negated where they are, {f}" for f in seen.faults))


def compared(outputs: tuple[Tensor, ...], expected: Expected) -> Verdict:
    if not expected.answer:
        return Verdict()
    actual, wanted = expected.decoded(outputs), expected.answer
    if len(actual) != len(wanted):
        sentence = f"the reference has {len(wanted)} tensors, the call gave {len(actual)}: name them by out="
        raise WrongAnswerError(sentence)
    allowed = expected.tolerances or (None,) * len(wanted)
    checks = tuple(_compared(a, e, t, expected.sample) for a, e, t in zip(actual, wanted, allowed, strict=True))
    return Verdict(checks, tuple(_fault(i, c) for i, c in enumerate(checks) if c.rule))


def _compared(actual: Tensor, wanted: Tensor, allowed: Tolerance | None, sample: Sample | None) -> Check:
    if sample is None:
        return check.compare(actual, wanted, allowed)
    return check.compare(sample.of(actual, wanted), wanted, allowed, lambda nth: sample.locate(nth, actual))


def _fault(number: int, seen: Check) -> str:
    worst = f"worst against the rms of its row, {seen.worst_rel:.3g} times it, {seen.relative.sentence}"
    return "\n  ".join((f"output {number}: {seen.sentence}", worst, *seen.report))


Fingerprint = dict[int, tuple[int, ...]]


def fingerprint(target: Target) -> Fingerprint:
    """A checksum of each storage that the call reads, those of its outputs left out."""
    written = {_storage(t) for t in target.outputs}
    read = {_storage(t): t for t in tensors((target.args, dict(target.kwargs))) if t.numel()}
    return {key: _sums(tensor) for key, tensor in read.items() if key not in written}


def unchanged(target: Target, before: Fingerprint, returned: tuple[Tensor, ...] = ()) -> Verdict:
    """What a call is given it must leave alone, but for its outputs: what it is told to write, or returns."""
    after, own = fingerprint(target), {_storage(t) for t in returned}
    changed = {key for key, sums in before.items() if after[key] != sums and key not in own}
    which = [describe(t) for t in tensors((target.args, dict(target.kwargs))) if _storage(t) in changed]
    return Verdict(faults=(f"the call changed its input {which[0]}",) if which else ())


def describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _sums(tensor: Tensor) -> tuple[int, ...]:
    """Of all the storage's bytes, 8 at a time, in columns: values that change places are seen as well."""
    raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return tuple(int(part) for part in _parts(raw))


def _parts(raw: Tensor) -> Iterator[Tensor]:
    whole = len(raw) // (8 * COLUMNS) * (8 * COLUMNS)
    places = torch.arange(1, COLUMNS + 1, device=raw.device)
    columns = raw[:whole].view(torch.int64).view(-1, COLUMNS).sum(0)
    yield (columns * (2 * places + 1)).sum()
    rest = raw[whole:].long()
    yield (rest * torch.arange(1, len(rest) + 1, device=raw.device)).sum()


def negate(values: Tensor) -> None:
    """Where they are, exactly, in any type that values are stored in: packed pairs of e2m1 are bytes."""
    if values.dtype == torch.uint8:
        values.bitwise_xor_(0x88)
    elif values.itemsize == 1:
        values.view(torch.uint8).bitwise_xor_(0x80)
    else:
        values.neg_()


def negated(parts: Callable[[Any], Tensor], *holders: Any) -> Callable[[], None]:
    """Turns what each holder has there, once where that is the same."""
    values = {_storage(part): part for holder in holders if (part := parts(holder)).numel()}

    def turn() -> None:
        for part in values.values():
            negate(part)

    return turn
