"""The computation of experts, each for the tokens that chose it: two products with an activation between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pytest_flashinfer_perf.routines.moe._stored import ExpertLayer

Gated = Callable[[Tensor, Tensor], Tensor]


STEP = 7.0  # FlashInfer's own constants, of calls that state no other

SITU_GATE, SITU_UP = 4.0, 25.0


def _by(gated: Callable[[Tensor], Tensor]) -> Gated:
    return lambda up, gate: up * gated(gate)


def _situ(up: Tensor, gate: Tensor) -> Tensor:
    """SiTU in fp32: rounded to bf16 after each operation, an answer may be further off than the check allows."""
    wide_up, wide = up.float(), gate.float()
    bent = SITU_UP * torch.tanh(wide_up / SITU_UP) * SITU_GATE * torch.tanh(wide / SITU_GATE)
    return (bent * wide.sigmoid()).to(up.dtype)


GATED: dict[str, Gated] = {
    "Swiglu": _by(functional.silu),
    "Geglu": _by(functional.gelu),
    "GegluTanh": _by(partial(functional.gelu, approximate="tanh")),
    "SwigluBias": _by(functional.silu),  # without the numbers that would make it another
    "SwigluStep": lambda up, gate: up.clamp(-STEP, STEP) * functional.silu(gate).clamp_max(STEP),
    "Situ": _situ,
}


UNGATED: dict[str, Callable[[Tensor], Tensor]] = {
    "Gelu": functional.gelu,
    "Relu": functional.relu,
    "Silu": functional.silu,
    "Relu2": lambda x: x.relu().square(),
    "Identity": torch.Tensor.contiguous,
}


ACTIVATIONS = ("Swiglu", "Geglu", "Relu2", *sorted({*GATED, *UNGATED} - {"Swiglu", "Geglu", "Relu2"}))


def columns(activation: str, intermediate: int) -> int:
    """Rows of an expert's first weights: those of its gate come after those that are gated."""
    return 2 * intermediate if activation in GATED else intermediate


def activated(products: Tensor, activation: str) -> Tensor:
    if activation in GATED:
        return GATED[activation](*products.chunk(2, -1))
    return UNGATED[activation](products)


class ChosenExpert(NamedTuple):
    """An expert of this GPU, with the rows of the tokens that chose it and the rank of each choice."""

    expert: int
    rows: Tensor
    slots: Tensor


def chosen(selected: Tensor, first: int, count: int) -> Iterator[ChosenExpert]:
    """The chosen experts among `first` to `first + count`, numbered from 0."""
    for expert in range(count):
        rows, slots = (selected == first + expert).nonzero(as_tuple=True)
        if len(rows):
            yield ChosenExpert(expert, rows, slots)


class Choices(NamedTuple):
    """The experts of each token, and the weights of their outputs, or of their first products."""

    selected: Tensor  # [tokens, top_k]
    weights: Tensor  # [tokens, top_k]
    on_input: bool = False


def answer(
    layer: ExpertLayer, activation: str, choices: Choices, here: list[ChosenExpert], dtype: torch.dtype
) -> Tensor:
    """For each token the weighted sum of its experts' outputs, with products in this type."""
    total = torch.zeros(layer.tokens.shape, device=layer.tokens.device)
    for number, rows, slots in here:
        weights = choices.weights[rows, slots, None]
        products = _times(layer.tokens[rows].to(dtype) @ layer.first(number).to(dtype).T, layer.by_first, number)
        between = layer.rounded(activated(products * weights if choices.on_input else products, activation))
        outputs = _times(between.to(dtype) @ layer.second(number).to(dtype).T, layer.by_second, number).float()
        total.index_add_(0, rows, outputs if choices.on_input else outputs * weights)
    return total


def _times(x: Tensor, factors: Tensor | None, number: int) -> Tensor:
    return x if factors is None else x * factors[number]
