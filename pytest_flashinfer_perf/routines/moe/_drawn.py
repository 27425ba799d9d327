"""What is drawn for a MoE: which experts tokens choose, since an expert's load decides what it costs, and values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOADS = ("uniform", "zipf", "one")
FAVOUR = 20.0  # of the experts that every token chooses: above any noise
AVERSION = 4.0  # where scores are sigmoids, which would all be near 1
BIAS = 0.05


def popularity(load: str, experts: int, favourites: range, rand: torch.Generator) -> Tensor:
    """Its logarithm. zipf: in proportion to 1, 1/2, 1/3, ...; one: the same few experts for every token."""
    if load == "zipf":
        return -torch.log1p(torch.randperm(experts, device=rand.device, generator=rand).float())
    popular = torch.zeros(experts, device=rand.device)
    if load == "one":
        popular[favourites.start : favourites.stop] = FAVOUR
    return popular


def logits(popular: Tensor, tokens: int, rand: torch.Generator) -> Tensor:
    """With noise that makes the largest ones a draw without replacement, by each expert's popularity."""
    uniform = torch.rand(tokens, len(popular), device=rand.device, generator=rand).clamp(1e-6, 1 - 1e-6)
    return popular - torch.log(-torch.log(uniform))


def bias(experts: int, rand: torch.Generator) -> Tensor:
    return (BIAS * torch.randn(experts, device=rand.device, generator=rand)).bfloat16()


def tokens(count: int, hidden: int, rand: torch.Generator) -> Tensor:
    """With outliers as activations have them: one value in a thousand is ten times as large."""
    x = torch.randn(count, hidden, device=rand.device, generator=rand)
    return torch.where(torch.rand(x.shape, device=x.device, generator=rand) < 1e-3, 10 * x, x)


def weights(experts: int, rows: int, columns: int, dtype: torch.dtype, rand: torch.Generator) -> Tensor:
    """One expert after another, since all in fp32 would be too much; each of a size of its own."""
    out = torch.empty(experts, rows, columns, dtype=dtype, device=rand.device)
    for expert in out:
        size = 2.0 ** int(torch.randint(-1, 2, (), device=rand.device, generator=rand))
        expert.copy_(torch.randn(rows, columns, device=rand.device, generator=rand) * size / math.sqrt(columns))
    return out
