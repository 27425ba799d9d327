"""Call a function to check its answer, and to find unwritten outputs, changed inputs and remembered answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.checking.check import BY_DTYPE, Check, Sample, Tolerance, WrongAnswerError
from pytest_flashinfer_perf.engine import refusals
from pytest_flashinfer_perf.engine.copies import describe, plain, storage, unusual_kind
from pytest_flashinfer_perf.engine.fingerprint import Fingerprint
from pytest_flashinfer_perf.engine.instruments import Call
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.spec.nested import has_both_signs, tensors

MOST_CHANGES = 3  # each calls the reference once more
MOVED = (
    "the call exchanged or reshaped a tensor among its arguments, so that timed calls would be given others: let it "
    "leave them as they are"
)
NOT_KEPT = object()
FIRST_ONLY = "the call changes its inputs: only the answer of its first call was checked"
Outputs = Tensor | Sequence[Tensor] | None
Kind = tuple[torch.dtype, torch.device, str]


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class Expected:
    """The answer to compare with, its tolerances, how outputs are decoded, and the rows to compare.

    `recompute` gives the answer to the current inputs, None if there is none; `changes` are ways to change the inputs.
    """

    answer: tuple[Tensor, ...]
    tolerances: tuple[Tolerance, ...] = ()
    decoded: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = tuple
    sample: Sample | None = None
    recompute: Callable[[], Expected | None] = _nothing
    changes: tuple[InputChange, ...] = ()


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one or more calls: a comparison for each output, faults, and notes."""

    checks: tuple[Check, ...] = ()
    faults: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: CheckResult) -> CheckResult:
        return CheckResult(self.checks + other.checks, self.faults + other.faults, self.notes + other.notes)

    def of(self, which: str) -> CheckResult:
        return CheckResult(self.checks, tuple(f"{which}, {fault}" for fault in self.faults), self.notes)

    def raise_if_wrong(self) -> CheckResult:
        """Raise WrongAnswerError if there are faults, else return self."""
        if self.faults:
            raise WrongAnswerError("\n".join(self.faults))
        return self


@dataclass
class Examination:
    """Checks a call's first answer, that of the last timed call, and one more to changed inputs."""

    target: Target
    expected: Expected
    device: Device
    before: Fingerprint | None  # None if checks are off
    own: set[int] = field(default_factory=set)  # inputs that the call returns
    in_place: bool = False
    kinds: tuple[Kind, ...] = ()  # of the first answer, which all others must have

    def first(self) -> CheckResult:
        answer, returned = self._call(self.target)
        self.own, changed = {storage(tensor) for tensor in returned if not unusual_kind(tensor)}, self._changed()
        self.in_place = bool(changed & self.own)
        self.kinds = tuple(map(_kind, answer))
        return self._compare(answer, self.expected) + self._input_faults(changed)

    def last(self, timed: Target, returned: object) -> CheckResult:
        """Check the last timed call: its outputs, or what it `returned`, NOT_KEPT if that is not known."""
        refusals.refuse_lazy(returned)
        answer = timed.outputs or tuple(tensors(returned))
        if returned is NOT_KEPT and not timed.outputs:
            return CheckResult()
        expected = Expected(()) if self.in_place else self.expected
        return self._compare(answer, expected).of("of a timed call")

    def once_more(self, call: Call) -> CheckResult:
        """Check one more call of what was timed, which may have returned a remembered answer or stopped working."""
        if not self.expected.answer:
            return self._input_faults(self._changed())
        with self._other_inputs() as (what, expected):
            if expected is None:
                return CheckResult(notes=(FIRST_ONLY,))
            result = self._compare(self._call(call)[0], expected)
        return result.of(f"of one more call {what}".rstrip()) + self._input_faults(self._changed())

    @contextmanager
    def _other_inputs(self) -> Iterator[tuple[str, Expected | None]]:
        """Change the inputs so that the reference's answer changes; a call in place does so itself."""
        changes = (InputChange("", nullcontext),) if self.in_place else self.expected.changes[:MOST_CHANGES]
        for change in changes:
            with change.apply():
                expected = self.expected.recompute()
                if expected is not None and (change.followed or self._follows(expected)):
                    yield change.what, expected
                    return
        yield "", None if self.in_place else self.expected

    def _follows(self, other: Expected) -> bool:
        """Whether the answer differs from the first one, and fits into the types of the outputs."""
        fits = all(_largest(a) <= _most(kind[0]) for a, kind in zip(other.answer, self.kinds, strict=False))
        pairs = zip(other.answer, self.expected.answer, strict=False)
        return fits and any(new.shape != old.shape or not torch.equal(new, old) for new, old in pairs)

    def _call(self, call: Call) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Poison its outputs, call it, and return these outputs and what it returned."""
        check.poison(self.target.outputs)
        answer = call()
        refusals.refuse_lazy(answer)
        returned = tuple(tensors(answer))
        self.device.synchronize()
        return self.target.outputs or returned, returned

    def _compare(self, answer: tuple[Tensor, ...], expected: Expected) -> CheckResult:
        """Compare them if they are of the kinds of the first answer, which decide the tolerances."""
        pairs = enumerate(zip(answer, self.kinds, strict=False))
        others = [(n, _words(_kind(tensor)), _words(kind)) for n, (tensor, kind) in pairs if _kind(tensor) != kind]
        if others:
            faults = (f"output {n}: {now}, where the first call gave {first}" for n, now, first in others)
            return CheckResult(faults=tuple(faults))
        return compared(answer, expected, poisoned=bool(self.target.outputs))

    def _changed(self) -> set[int]:
        return self.before.changed() if self.before else set()

    def _input_faults(self, changed: set[int]) -> CheckResult:
        """Report an input that the call changed and neither returns nor has as `out`, or one that it exchanged."""
        if self.before and self.before.moved():
            return CheckResult(faults=(MOVED,))
        inputs = tensors((self.target.args, dict(self.target.kwargs)))
        which = [describe(tensor) for tensor in inputs if storage(tensor) in changed - self.own]
        faults = (f"the call changed its input {which[0]}: return it, or name it by out=",) if which else ()
        return CheckResult(faults=faults)


def _kind(tensor: Tensor) -> Kind:
    return tensor.dtype, tensor.device, unusual_kind(tensor)


def _words(kind: Kind) -> str:
    dtype, device, special = kind
    return " ".join(filter(None, (str(dtype).removeprefix("torch."), special, f"on {device}")))


def _largest(values: Tensor) -> float:
    """The largest absolute value; infinite if there is NaN, infinities ignored."""
    if values.numel() == 0:
        return 0.0
    sizes = (values if values.is_complex() else values.float()).abs()
    largest: float = sizes.nan_to_num(nan=math.inf, posinf=0.0).max().item()
    return largest


def _most(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max if dtype.is_floating_point or dtype.is_complex else math.inf


def compared(outputs: tuple[Tensor, ...], expected: Expected, *, poisoned: bool) -> CheckResult:
    if not expected.answer:
        return CheckResult()
    refusals.refuse_tensors("an answer", outputs)
    actual, wanted = expected.decoded(outputs), expected.answer
    if len(actual) != len(wanted):
        sentence = f"the reference has {_tensors(len(wanted))}, the call gave {_tensors(len(actual))}"
        return CheckResult(faults=(f"{sentence}: name by out= what it writes",))
    allowed = expected.tolerances or (None,) * len(wanted)
    compare = partial(_compare_one, expected.sample, poisoned=poisoned)
    checks = tuple(compare(*these) for these in zip(actual, wanted, allowed, strict=True))
    return CheckResult(checks, tuple(_fault(i, c) for i, c in enumerate(checks) if c.rule))


def _compare_one(
    sample: Sample | None, actual: Tensor, wanted: Tensor, allowed: Tolerance | None, *, poisoned: bool
) -> Check:
    actual, wanted = plain(actual), plain(wanted).to(actual.device)
    if sample is None:
        return check.compare(actual, wanted, allowed, poisoned=poisoned)
    chosen = sample.of(actual, wanted)
    return check.compare(chosen, wanted, allowed, lambda nth: sample.locate(nth, actual), poisoned=poisoned)


def _tensors(number: int) -> str:
    return "1 tensor" if number == 1 else f"{number} tensors"


def _fault(number: int, comparison: Check) -> str:
    return "\n  ".join((f"output {number}: {comparison.lines[0]}", *comparison.lines[1:]))


# Change inputs in place for a moment, to verify that a call's answer depends on them.


class InputChange(NamedTuple):
    """A description, and a context manager that makes the change and undoes it.

    `followed` states that the reference depends on the change; otherwise that is verified first.
    """

    what: str
    apply: Callable[[], AbstractContextManager[None]]
    followed: bool = False


def negated_activations(parts: Callable[[Any], Tensor], *holders: Any) -> InputChange:
    """The change that negates a routine's activations, once where holders share them."""
    values = {storage(part): part for part in map(parts, holders) if part.numel()}
    negate_all = partial(_negated, values.values())
    return InputChange("with its activations negated in place", negate_all, followed=True)


def changes_of_inputs(arguments: Any, outputs: tuple[Tensor, ...]) -> Iterator[InputChange]:
    """Changes for each storage of floating-point inputs; integers may be indices, and other types packed values.

    Inputs of one sign keep it, since they may be scales, variances or probabilities.
    """
    by_storage: dict[int, list[Tensor]] = {}
    for tensor in tensors(arguments):
        by_storage.setdefault(storage(tensor), []).append(tensor)
    written = {storage(t) for t in outputs}
    for key, views in by_storage.items():
        first = views[0]
        if key not in written and first.numel() and {view.dtype for view in views} <= {first.dtype} & BY_DTYPE.keys():
            values, which = _covered(first), f"with its input {describe(first)}"
            if has_both_signs(values):
                yield InputChange(f"{which} negated in place", partial(_negated, (values,)))
            yield InputChange(f"{which} halved in place", partial(_halved, values))


def _covered(tensor: Tensor) -> Tensor:
    """The memory that a view covers, each element once."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return flat.set_(tensor.untyped_storage(), tensor.storage_offset(), (reach + 1,), (1,))


@contextmanager
def _negated(parts: Iterable[Tensor]) -> Iterator[None]:
    for part in parts:
        negate(part)
    try:
        yield
    finally:
        for part in parts:
            negate(part)


@contextmanager
def _halved(values: Tensor) -> Iterator[None]:
    original = values.clone()
    values.copy_((original.float() if original.itemsize == 1 else original) / 2)
    try:
        yield
    finally:
        values.copy_(original)


def negate(values: Tensor) -> None:
    """Negate in place and exactly, in any storage type; bytes are packed pairs of e2m1."""
    if values.dtype == torch.uint8:
        values.bitwise_xor_(0x88)
    elif values.itemsize == 1:
        values.view(torch.uint8).bitwise_xor_(0x80)
    else:
        values.neg_()
