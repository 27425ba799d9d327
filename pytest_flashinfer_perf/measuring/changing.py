"""Change inputs in place for a moment, to verify that a call's answer depends on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking.check import BY_DTYPE
from pytest_flashinfer_perf.spec.nested import has_both_signs, tensors
from pytest_flashinfer_perf.timing.copies import describe, storage


class InputChange(NamedTuple):
    """A description, and a context manager that makes the change and undoes it.

    `followed` states that the reference depends on the change; otherwise that is verified first.
    """

    what: str
    made: Callable[[], AbstractContextManager[None]]
    followed: bool = False


def negated_activations(parts: Callable[[Any], Tensor], *holders: Any) -> InputChange:
    """The change that negates a routine's activations, once where holders share them."""
    values = {storage(part): part for part in map(parts, holders) if part.numel()}
    made = partial(_negated, values.values())
    return InputChange("with its activations negated in place", made, followed=True)


def changes_of_inputs(arguments: Any, outputs: tuple[Tensor, ...]) -> Iterator[InputChange]:
    """Changes for each storage of floating-point inputs; integers may be indices, and other types packed values.

    Inputs of one sign keep it, since they may be scales, variances or probabilities.
    """
    found: dict[int, list[Tensor]] = {}
    for tensor in tensors(arguments):
        found.setdefault(storage(tensor), []).append(tensor)
    written = {storage(t) for t in outputs}
    for key, views in found.items():
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
    kept = values.clone()
    values.copy_((kept.float() if kept.itemsize == 1 else kept) / 2)
    try:
        yield
    finally:
        values.copy_(kept)


def negate(values: Tensor) -> None:
    """Negate in place and exactly, in any storage type; bytes are packed pairs of e2m1."""
    if values.dtype == torch.uint8:
        values.bitwise_xor_(0x88)
    elif values.itemsize == 1:
        values.view(torch.uint8).bitwise_xor_(0x80)
    else:
        values.neg_()
