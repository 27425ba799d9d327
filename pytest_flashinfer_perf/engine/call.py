"""The description of a call of one's own: what to call, the work that it does, and the answer to expect.

`perf.time` and `measure` make it once; what is measured and compared is derived from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from pytest_flashinfer_perf.engine import refusals, verification
from pytest_flashinfer_perf.engine.copies import plain, storage
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.engine.verification import Expected, Outputs
from pytest_flashinfer_perf.settings.option import is_finite
from pytest_flashinfer_perf.spec import dtypes
from pytest_flashinfer_perf.spec.nested import tensors

Reference = Outputs | Callable[..., Outputs]


@dataclass(frozen=True)
class CallSpec:
    """`fn(*args, **kwargs)`, with its FLOPs and bytes, its right answer, and the tensors that it writes."""

    fn: Callable[..., object]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    flops: float | None = None
    bytes: float | None = None
    flops_dtype: str | None = None
    reference: Reference = None
    out: Outputs = None

    def __call__(self) -> object:
        return self.fn(*self.args, **self.kwargs)

    @property
    def computed_in(self) -> str:
        """The type in which the FLOPs are computed: that of the arguments, unless another one is named."""
        return dtypes.computed_in(self.flops_dtype, tensors((self.args, self.kwargs)))

    def target(self, name: str) -> Target:
        """What to time; raises an error with a sentence if this cannot be measured."""
        refusals.refuse_arguments((self.args, self.kwargs))
        _verify_work(flops=self.flops, bytes=self.bytes)
        outputs = () if self.out is None else _tensors("out must be", self.out)
        kwargs = dict(self.kwargs)
        if outputs and _takes_out(self.fn, (self.args, kwargs), outputs):
            kwargs["out"] = self.out
        obstacle = refusals.obstacle((self.args, kwargs, outputs))
        return Target(self.fn, self.args, kwargs, outputs, name, obstacle=obstacle)

    def expected(self, target: Target) -> Expected:
        """The answer to compare with; a function that computes it is asked again after a change of the inputs."""
        if self.reference is None:
            return Expected(())
        if not callable(self.reference):
            return Expected(_apart(_tensors("reference must be", self.reference), target))
        answer = partial(_answer, self._answering(self.reference), target)
        changes = verification.changes_of_inputs((target.args, dict(target.kwargs)), target.outputs)
        return Expected(answer(), recompute=partial(_recompute, answer), changes=tuple(changes))

    def _answering(self, reference: Callable[..., Outputs]) -> Callable[[], Outputs]:
        """Give the reference the call's arguments, if it has a parameter without a default: a closure has none."""
        bound = partial(reference, *self.args, **self.kwargs)
        try:
            signature = inspect.signature(reference)
        except ValueError:  # torch's own functions have none to read, and all want arguments
            return bound
        if all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
            return reference
        try:
            signature.bind(*self.args, **self.kwargs)
        except TypeError as error:
            why = f"reference takes {signature}, and the call has other arguments: {error}"
            raise TypeError(f"{why}; write it as reference=lambda: ...") from None
        return bound


def _verify_work(**declared: float | None) -> None:
    for name, value in declared.items():
        if value is not None and not is_finite(value):
            raise ValueError(f"{name} must be a finite number of at least 0, got {value!r}")


def _tensors(must: str, value: object) -> tuple[Tensor, ...]:
    result = tuple(tensors(value))
    if not result:
        raise TypeError(f"{must} a tensor or several of them, got {type(value).__name__}")
    refusals.refuse_tensors(must.partition(" ")[0], value)
    return result


def _takes_out(fn: Callable[..., object], arguments: Any, out: tuple[Tensor, ...]) -> bool:
    if any(argument is output for argument in tensors(arguments) for output in out):
        return False
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # torch's own functions have no signature to read, and take out=
        return True
    return any(p.name == "out" or p.kind is p.VAR_KEYWORD for p in parameters)


def _answer(reference: Callable[[], Outputs], target: Target) -> tuple[Tensor, ...]:
    return _apart(_tensors("reference must return", reference()), target)


def _apart(answer: tuple[Tensor, ...], target: Target) -> tuple[Tensor, ...]:
    """Copy tensors of the answer that share memory with those of the call, which would change them."""
    shared = {storage(t) for t in tensors((target.args, dict(target.kwargs), target.outputs))}
    return tuple(plain(t).clone() if storage(t) in shared else plain(t) for t in answer)


def _recompute(answer: Callable[[], tuple[Tensor, ...]]) -> Expected | None:
    """The answer to changed inputs; None if the reference fails for them, as a factorisation may."""
    try:
        return Expected(answer())
    except Exception:  # noqa: BLE001 - it succeeded for the original inputs
        return None
