"""Draw the inputs of a MoE: the experts that tokens choose, whose load determines the cost, and values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

LOADS = ("uniform", "zipf", "one")
FAVOUR = 20.0  # of the experts that every token chooses: above any noise
AVERSION = 4.0  # where scores are sigmoids, which would all be near 1
BIAS = 0.05


def popularity(load: str, experts: int, favourites: range, rand: torch.Generator) -> Tensor:
    """The logarithm of each expert's popularity: zipf is 1, 1/2, 1/3, ...; one is the same few experts for all."""
    if load == "zipf":
        return -torch.log1p(torch.randperm(experts, device=rand.device, generator=rand).float())
    popular = torch.zeros(experts, device=rand.device)
    if load == "one":
        popular[favourites.start : favourites.stop] = FAVOUR
    return popular


def logits(popular: Tensor, tokens: int, rand: torch.Generator) -> Tensor:
    """Logits with noise, so that the top_k are a draw without replacement by popularity."""
    uniform = torch.rand(tokens, len(popular), device=rand.device, generator=rand).clamp(1e-6, 1 - 1e-6)
    return popular - torch.log(-torch.log(uniform))


def bias(experts: int, rand: torch.Generator) -> Tensor:
    return (BIAS * torch.randn(experts, device=rand.device, generator=rand)).bfloat16()


def tokens(count: int, hidden: int, rand: torch.Generator) -> Tensor:
    """Tokens with outliers, as activations have: one value in a thousand is ten times as large."""
    x = torch.randn(count, hidden, device=rand.device, generator=rand)
    return torch.where(torch.rand(x.shape, device=x.device, generator=rand) < 1e-3, 10 * x, x)


@dataclass(frozen=True)
class Weights:
    """A matrix for each expert, of another magnitude each. They are drawn one by one while they are iterated, since all
    of them may not fit before they are quantised.
    """

    experts: int
    rows: int
    columns: int
    dtype: torch.dtype
    rand: torch.Generator

    def __len__(self) -> int:
        return self.experts

    def __iter__(self) -> Iterator[Tensor]:
        rand = self.rand
        for _ in range(self.experts):
            size = 2.0 ** int(torch.randint(-1, 2, (), device=rand.device, generator=rand))
            drawn = torch.randn(self.rows, self.columns, device=rand.device, generator=rand)
            yield drawn.mul_(size / math.sqrt(self.columns)).to(self.dtype)
