"""Changes what a call reads, where it lies, for as long as it takes to see whether the answer follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking.check import BY_DTYPE
from pytest_flashinfer_perf.spec.nested import tensors
from pytest_flashinfer_perf.timing.cold import storage


class InputChange(NamedTuple):
    """What is different while it is made, and what makes it; when that is left, the inputs are as they were.

    `followed` is known of a routine's reference, and looked at where it is somebody else's.
    """

    what: str
    made: Callable[[], AbstractContextManager[None]]
    followed: bool = False


def of_activations(parts: Callable[[Any], Tensor], *holders: Any) -> InputChange:
    """A routine's, of each holder, negated once where they are the same."""
    values = {storage(part): part for part in map(parts, holders) if part.numel()}
    made = partial(_negated, values.values())
    return InputChange("with its activations negated where they are", made, followed=True)


def of_inputs(arguments: Any, outputs: tuple[Tensor, ...]) -> Iterator[InputChange]:
    """For each storage of numbers with fractions: integers may be indices, and other types may be packed ones.

    What has one sign keeps it, since it may be a scale, a variance or a probability.
    """
    found: dict[int, list[Tensor]] = {}
    for tensor in tensors(arguments):
        found.setdefault(storage(tensor), []).append(tensor)
    written = {storage(t) for t in outputs}
    for key, views in found.items():
        first = views[0]
        if key not in written and first.numel() and {view.dtype for view in views} <= {first.dtype} & BY_DTYPE.keys():
            values, which = _covered(first), f"with its input {describe(first)}"
            if _has_both_signs(values):
                yield InputChange(f"{which} negated where it is", partial(_negated, (values,)))
            yield InputChange(f"{which} halved where it is", partial(_halved, values))


def _covered(tensor: Tensor) -> Tensor:
    """Each element of its memory once, which a view may show several times."""
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


def _has_both_signs(values: Tensor) -> bool:
    parts = torch.view_as_real(values) if values.is_complex() else values
    bits = parts.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[parts.itemsize])
    return bool(bits.min() < 0) and bool(bits.max() > 0)


@contextmanager
def _halved(values: Tensor) -> Iterator[None]:
    kept = values.clone()
    values.copy_((kept.float() if kept.itemsize == 1 else kept) / 2)
    try:
        yield
    finally:
        values.copy_(kept)


def negate(values: Tensor) -> None:
    """Where they are, exactly, in any type that values are stored in: packed pairs of e2m1 are bytes."""
    if values.dtype == torch.uint8:
        values.bitwise_xor_(0x88)
    elif values.itemsize == 1:
        values.view(torch.uint8).bitwise_xor_(0x80)
    else:
        values.neg_()


def describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
