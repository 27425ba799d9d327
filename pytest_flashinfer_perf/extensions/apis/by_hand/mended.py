"""APIs whose template lacks or mistakes a little: products, experts, RoPE with quantisation, and `top_k`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.extensions.apis.by_hand import Mended, Output, Template, sized
from pytest_flashinfer_perf.routines import _narrow

Init = Callable[..., dict[str, Any]]
INTERLEAVED = 32  # columns of `up`, then as many of `gate`
WHOLE = {"no_rope_dim": ()}
CHOSEN = ("batch_size", "top_k")

# Products whose templates make operands that no kernel takes on Hopper, or in another layout.


@sized(M=None, N=1536, K=7168)
def _fp8_init(at: Any, device: str) -> dict[str, Any]:
    """Weights [N, K] as they are; FlashInfer's template prepares them for its low-latency kernel."""
    a, b = (_narrow.per_tensor(torch.randn(rows, at.K, dtype=torch.bfloat16, device=device)) for rows in (at.M, at.N))
    return {"a": a.values, "b": b.values, "alpha": torch.tensor(a.scale * b.scale, device=device)}


def _fp8(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    return a.float() @ b.float().mT * alpha


@sized(M=None, K=6144, N=256)
def _router_init(at: Any, device: str) -> dict[str, Any]:
    a, b = (torch.randn(rows, at.K, dtype=torch.bfloat16, device=device) for rows in (at.M, at.N))
    return {"mat_a": a, "mat_b": b.mT, "out": torch.empty(at.M, at.N, dtype=torch.float32, device=device)}


def _scales_by_columns(usual: Init) -> Init:
    """The kernel reads the scales of each block of columns one after the other, a multiple of 4 of them."""

    def init(**axes: Any) -> dict[str, Any]:
        made = usual(**axes)
        scales = made["input_scale"]
        held = torch.zeros(scales.shape[1], -(-len(scales) // 4) * 4, dtype=scales.dtype, device=scales.device)
        held[:, : len(scales)] = scales.mT
        return {**made, "input_scale": held.mT[: len(scales)]}

    return init


# Experts whose templates have no inputs, or a reference of another order of the weights.


@sized(num_tokens=None, hidden_size=2048, intermediate_size=768, num_experts=128, top_k=8)
def _bf16_init(at: Any, device: str) -> dict[str, Any]:
    """The layer of Qwen3-30B-A3B; each token's experts are drawn with equal chances."""

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.bfloat16, device=device)

    chances = torch.rand(at.num_tokens, at.num_experts, device=device)
    shares, chosen = chances.topk(at.top_k)
    return {
        "x": drawn(at.num_tokens, at.hidden_size),
        "token_selected_experts": chosen.int(),
        "token_final_scales": shares / shares.sum(-1, keepdim=True),
        "w1_weight": drawn(at.num_experts, 2 * at.intermediate_size, at.hidden_size) / at.hidden_size**0.5,
        "w2_weight": drawn(at.num_experts, at.hidden_size, at.intermediate_size) / at.intermediate_size**0.5,
        "num_experts": at.num_experts,
        "top_k": at.top_k,
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


# RoPE with quantisation: heads that are turned whole, and caches of both layouts.


def _turned_whole(usual: Init) -> Init:
    """Without a part that is not turned, the call is given None for it."""

    def init(**axes: Any) -> dict[str, Any]:
        made = usual(**axes)
        return made if axes["no_rope_dim"] else {**made, "q_nope": None, "k_nope": None}

    return init


def _into_caches(usual: Init) -> Init:
    whole = _turned_whole(usual)

    def init(*, kv_layout: str = "NHD", **axes: Any) -> dict[str, Any]:
        made = whole(**axes)
        by_heads = tuple(side.transpose(1, 2).contiguous() for side in made["paged_kv_cache"])
        return {**made, "paged_kv_cache": by_heads, "kv_layout": kv_layout} if kv_layout == "HND" else made

    return init


# `top_k`, which has no template in FlashInfer 0.7.2.


@sized(batch_size=None, vocab_size=128256, top_k=50)
def _top_init(at: Any, device: str) -> dict[str, Any]:
    return {"input": torch.randn(at.batch_size, at.vocab_size, device=device), "k": at.top_k}


def _top(input: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = input.topk(k)
    return values, indices


TEMPLATES = {
    "flashinfer.gemm.gemm_base.fp8_blockscale_gemm_sm90": Mended(around_init=_scales_by_columns),
    "flashinfer.gemm.gemm_base.mm_fp8": Mended(_fp8_init, _fp8),
    "flashinfer.gemm.routergemm.mm_M1_16_K6144_N256": Mended(_router_init),
    "flashinfer.fused_moe.cute_dsl.sm90_fused_moe.cute_dsl_fused_moe_bf16": Mended(_bf16_init, _bf16),
    "flashinfer.fused_moe.monomoe.mono_moe": Mended(around_reference=_exchanged),
    "flashinfer.rope.rope_quantize_fp8": Mended(around_init=_turned_whole, words=WHOLE),
    "flashinfer.rope.mla_rope_quantize_fp8": Mended(around_init=_turned_whole, words=WHOLE),
    "flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache": Mended(
        around_init=_into_caches, words={**WHOLE, "kv_layout": ("NHD", "HND")}
    ),
    "flashinfer.topk.top_k": Template("topk", _top_init, _top, {"values": Output(CHOSEN), "indices": Output(CHOSEN)}),
}
