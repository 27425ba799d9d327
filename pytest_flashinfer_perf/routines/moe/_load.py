"""Which experts each token chooses: the load of an expert decides what a MoE costs."""

from __future__ import annotations

import torch
from torch import Tensor

LOADS = ("uniform", "zipf", "one")


def logits(load: str, tokens: int, experts: int, top_k: int, rand: torch.Generator) -> Tensor:
    """With noise that makes the largest ones a draw without replacement, by each expert's popularity."""
    uniform = torch.rand(tokens, experts, device=rand.device, generator=rand).clamp_min(1e-6)
    noise = -torch.log(-torch.log(uniform.clamp_max(1 - 1e-6)))
    return noise + _popularity(load, experts, top_k, rand)


def _popularity(load: str, experts: int, top_k: int, rand: torch.Generator) -> Tensor:
    """Its logarithm. zipf: in proportion to 1, 1/2, 1/3, ...; one: the same few experts for every token."""
    rank = torch.randperm(experts, device=rand.device, generator=rand)
    if load == "zipf":
        return -torch.log1p(rank.float())
    return (rank < top_k).float() * 100.0 if load == "one" else torch.zeros(experts, device=rand.device)


def renormalised(scores: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The chosen experts, and weights that add up to 1: softmax, then the largest, then divided by their sum."""
    largest, experts = scores.topk(top_k)
    return experts.int(), largest.softmax(-1)
