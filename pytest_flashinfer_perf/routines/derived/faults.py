"""Wrong answers, to test that the check of an API's answer finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking import check

Spoil = Callable[[Tensor], Tensor]


def _scaled(right: Tensor) -> Tensor:
    return (right.double() * 1.02).to(right.dtype)


def _wide(values: Tensor) -> Tensor:
    """Torch has no arithmetic of narrow types."""
    return values.float() if values.is_floating_point() and values.itemsize == 1 else values


def _row_wrong(right: Tensor) -> Tensor:
    """A row of it, of one dimension an element, is another one's; of a single row, the reverse of it."""
    spoiled = right.clone()
    rows = spoiled.reshape(-1, right.shape[-1]) if right.dim() > 1 else spoiled.reshape(-1, 1)
    at = len(rows) // 2
    rows[at] = rows[at - 1] if len(rows) > 1 else _wide(rows[at]).flip(-1).to(right.dtype)
    return rows.reshape(right.shape)


def _unwritten(right: Tensor) -> Tensor:
    spoiled = right.clone()
    check.poison((spoiled,))
    return spoiled


FAULTS: Mapping[str, Spoil] = {
    "scaled by 2 %": _scaled,
    "one row wrong": _row_wrong,
    "zeros": torch.zeros_like,
    "unwritten": _unwritten,
}


def missed(right: tuple[Tensor, ...], is_right: Callable[[tuple[Tensor, ...]], bool]) -> Iterator[str]:
    """The faults, in all outputs at once, that this check takes for an answer."""
    for name, spoil in FAULTS.items():
        spoiled = tuple(map(spoil, right))
        if all(torch.equal(_wide(wrong), _wide(own)) for wrong, own in zip(spoiled, right, strict=True)) or is_right(
            spoiled
        ):
            yield name
