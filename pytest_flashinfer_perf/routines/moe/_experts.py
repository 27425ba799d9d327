"""What experts compute, each for the tokens that chose it: two products with an activation between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

GATED: dict[str, Callable[[Tensor], Tensor]] = {"Swiglu": functional.silu, "Geglu": functional.gelu}
ACTIVATIONS = (*GATED, "Relu2")


def columns(activation: str, intermediate: int) -> int:
    """Rows of an expert's first weights: those of its gate come after those that are gated."""
    return 2 * intermediate if activation in GATED else intermediate


def activated(products: Tensor, activation: str) -> Tensor:
    if activation not in GATED:
        return products.relu().square()
    up, gate = products.chunk(2, -1)
    return up * GATED[activation](gate)


class Chosen(NamedTuple):
    """An expert that is here, and each choice of it: the token's row, and which of its choices that is."""

    expert: int
    rows: Tensor
    slots: Tensor


def chosen(selected: Tensor, first: int, count: int) -> Iterator[Chosen]:
    """The experts `first` to `first + count` that somebody chose, numbered from 0."""
    for expert in range(count):
        rows, slots = (selected == first + expert).nonzero(as_tuple=True)
        if len(rows):
            yield Chosen(expert, rows, slots)


def combined(selected: list[Chosen], weights: Tensor, hidden: int, expert: Callable[[int, Tensor], Tensor]) -> Tensor:
    """The sum over its experts of what each makes of a token, weighted; `expert` takes its number and the rows."""
    out = torch.zeros(weights.shape[0], hidden, device=weights.device)
    for number, rows, slots in selected:
        out.index_add_(0, rows, expert(number, rows).float() * weights[rows, slots, None])
    return out
