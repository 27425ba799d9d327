"""Experts whose templates have no inputs, or a reference of another order of the weights."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines.derived.by_hand import Mended

INTERLEAVED = 32  # columns of `up`, then as many of `gate`


def _bf16_init(
    *,
    num_tokens: int,
    hidden_size: int = 2048,
    intermediate_size: int = 768,
    num_experts: int = 128,
    top_k: int = 8,
    device: str = "cuda",
    seed: int = 0,
) -> dict[str, Any]:
    """The layer of Qwen3-30B-A3B; each token's experts are drawn with equal chances."""
    torch.manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device)

    chances = torch.rand(num_tokens, num_experts, device=device)
    shares, chosen = chances.topk(top_k)
    return {
        "x": drawn(num_tokens, hidden_size),
        "token_selected_experts": chosen.int(),
        "token_final_scales": shares / shares.sum(-1, keepdim=True),
        "w1_weight": drawn(num_experts, 2 * intermediate_size, hidden_size) / hidden_size**0.5,
        "w2_weight": drawn(num_experts, hidden_size, intermediate_size) / intermediate_size**0.5,
        "num_experts": num_experts,
        "top_k": top_k,
    }


def _bf16(
    x: Tensor, token_selected_experts: Tensor, token_final_scales: Tensor, w1_weight: Tensor, w2_weight: Tensor
) -> Tensor:
    """Expert by expert; what is between the two products is rounded as the kernel stores it."""
    out = torch.zeros_like(x, dtype=torch.float32)
    for expert in token_selected_experts.unique().tolist():
        rows, slots = (token_selected_experts == expert).nonzero().T
        up, gate = (x[rows].float() @ w1_weight[expert].float().mT).unflatten(-1, (-1, 2, INTERLEAVED)).unbind(-2)
        between = (torch.nn.functional.silu(gate) * up).flatten(-2).bfloat16().float()
        weighted = between @ w2_weight[expert].float().mT * token_final_scales[rows, slots, None]
        out.index_add_(0, rows, weighted.float())
    return out


def _exchanged(usual: Callable[..., Any]) -> Callable[..., Any]:
    """`mono_moe` applies SiLU to the first half of the rows; FlashInfer's reference to the second."""

    @functools.wraps(usual)
    def reference(*, expert_weights_up: Tensor, expert_scales_up: Tensor, **others: Any) -> Any:
        halves = (torch.cat(rows.chunk(2, 1)[::-1], 1) for rows in (expert_weights_up, expert_scales_up))
        return usual(expert_weights_up=next(halves), expert_scales_up=next(halves), **others)

    return reference


TEMPLATES = {
    "flashinfer.fused_moe.cute_dsl.sm90_fused_moe.cute_dsl_fused_moe_bf16": Mended(_bf16_init, _bf16),
    "flashinfer.fused_moe.monomoe.mono_moe": Mended(around_reference=_exchanged),
}
