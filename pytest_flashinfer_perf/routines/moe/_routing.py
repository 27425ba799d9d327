"""The routing methods: how each chooses and weights the experts of a token, as the kernels do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

# By FlashInfer's RoutingMethodType. renormalize is softmax over the chosen, and renormalize_naive the same in the end.
METHODS = {"renormalize": 1, "deepseek_v3": 2, "llama4": 3, "renormalize_naive": 4, "topk": 5}
SIGMOIDS = ("deepseek_v3", "llama4")
BEST_OF_A_GROUP = 2


class ExpertChoice(Protocol):
    """The parameters of a choice of experts, in addition to the scores."""

    @property
    def routing_method(self) -> str: ...
    @property
    def top_k(self) -> int: ...
    @property
    def groups(self) -> int: ...
    @property
    def kept_groups(self) -> int: ...
    @property
    def routed_scaling_factor(self) -> float: ...


class Routed(NamedTuple):
    """`margin` is, for each token, the lead of the worst chosen expert over the best one that was not chosen."""

    experts: Tensor  # [tokens, top_k]
    weights: Tensor  # [tokens, top_k]
    margin: Tensor  # [tokens]


def routed(p: ExpertChoice, logits: Tensor, bias: Tensor | None) -> Routed:
    """The bias affects only the choice of deepseek_v3, not its weights; other methods do not scale weights."""
    logits = logits.float()
    if p.routing_method != "deepseek_v3":
        experts, margin = _best(logits, p.top_k)
        chosen = logits.gather(-1, experts)
        weighed = {"topk": chosen, "llama4": chosen.sigmoid()}.get(p.routing_method, chosen.softmax(-1))
        return Routed(experts, weighed, margin)
    scores = logits.sigmoid()
    ranked, group_margin = _of_best_groups(p, scores if bias is None else scores + bias.float())
    experts, margin = _best(ranked, p.top_k)
    weights = scores.gather(-1, experts)
    shares = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return Routed(experts, shares * p.routed_scaling_factor, margin.minimum(group_margin))


def _best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The indices of the largest, and their lead over the rest."""
    values, places = scores.topk(min(count + 1, scores.shape[-1]))
    if count == scores.shape[-1]:
        return places, torch.full(scores.shape[:-1], math.inf, device=scores.device)
    return places[..., :count], values[..., count - 1] - values[..., count]


def _of_best_groups(p: ExpertChoice, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Mask the scores of groups that are not chosen; a group is rated by its two best experts."""
    groups = scores.unflatten(-1, (p.groups, -1))
    if p.groups == 1:
        return scores, torch.full(scores.shape[:-1], math.inf, device=scores.device)
    kept, margin = _best(groups.topk(BEST_OF_A_GROUP).values.sum(-1), p.kept_groups)
    lost = torch.ones(groups.shape[:-1], dtype=torch.bool, device=scores.device).scatter(-1, kept, False)
    return groups.masked_fill(lost[..., None], -math.inf).flatten(-2), margin


# Draw the inputs of a MoE: the experts that tokens choose, whose load determines the cost, and values.

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


def counted(counts: Sequence[int], tokens: int, rand: torch.Generator) -> Tensor:
    """Experts [tokens, top_k], each chosen exactly so often: an expert's tokens are neighbours, in a random order."""
    of_each = torch.tensor(counts, device=rand.device)
    slots = torch.arange(len(counts), device=rand.device).repeat_interleave(of_each).view(-1, tokens)
    return slots.T[torch.randperm(tokens, device=rand.device, generator=rand)].contiguous()


def bias(experts: int, rand: torch.Generator) -> Tensor:
    return (BIAS * torch.randn(experts, device=rand.device, generator=rand)).bfloat16()


def tokens(count: int, hidden: int, rand: torch.Generator) -> Tensor:
    """Tokens with outliers, as activations have: one value in a thousand is ten times as large."""
    x = torch.randn(count, hidden, device=rand.device, generator=rand)
    return torch.where(torch.rand(x.shape, device=x.device, generator=rand) < 1e-3, 10 * x, x)


@dataclass(frozen=True)
class ExpertWeights:
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
