"""What the attention routines have in common: tolerances, and a plain torch backend on gathered pages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pytest_flashinfer_perf.check import Tolerance
from pytest_flashinfer_perf.dtypes import HALF, TORCH, is_fp8
from pytest_flashinfer_perf.routines.attention._paged import KVCache
from pytest_flashinfer_perf.routines.attention._params import AttentionParams

WORKSPACE_BYTES = 512 << 20


def workspace(device: torch.device) -> Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def tolerance(p: AttentionParams, *, rounds_queries: bool) -> Tolerance:
    """The library's tests allow 1e-3 for fp16 and bf16 values near 1, 1e-2 for cuDNN and xqa, 1e-1 for fp8.

    Ours are relative to the output's size, which shrinks with the context. An e4m3 value has 3 mantissa bits: what is
    rounded to it (probabilities and queries inside fp8 kernels, fp8 outputs) is off by up to 1/16. Over a context of
    one token all roundings to an fp8 output can go one way, since its values are few: they look like a common factor.
    `rounds_queries` says of a backend that it makes them fp8 where the KV cache is.
    """
    fp8_inside = is_fp8(p.q_dtype) or (rounds_queries and is_fp8(p.kv_dtype))
    if is_fp8(p.out):
        return Tolerance(rtol=8e-2, atol=3e-1 if fp8_inside else 1e-1, scale=1 / 16)
    if fp8_inside:
        return Tolerance(rtol=4e-2, atol=3e-1, scale=1e-2)
    if "bfloat16" in (p.q_dtype, p.kv_dtype, p.out):
        return Tolerance(rtol=1e-2, atol=3e-2, scale=4e-3)
    return Tolerance(rtol=2e-3, atol=5e-3, scale=1e-3)


def matmul_dtype(q_dtype: str, kv_dtype: str) -> str:
    """The type whose peak the kernel is compared with: fp8 only where both sides are."""
    return q_dtype if is_fp8(q_dtype) and is_fp8(kv_dtype) else half_of(q_dtype, kv_dtype)


def half_of(q_dtype: str, kv_dtype: str) -> str:
    return next((dtype for dtype in (q_dtype, kv_dtype) if dtype in HALF), HALF[0])


def gathered_sdpa(q: Tensor, kv: KVCache, block_tables: Tensor, ends: Tensor, compute: str) -> Tensor:
    """scaled_dot_product_attention in `compute`; row r of request b of q [batch, rows, heads, dim] sees `ends[b, r]`.

    The query heads of one KV head ride as rows, so that keys and values are not copied for each of them.
    """
    k, v = (side[block_tables].transpose(1, 2).flatten(2, 3).to(TORCH[compute]) for side in (kv.k, kv.v))
    batch, rows, heads, dim = q.shape
    group = heads // k.shape[1]
    folded = q.to(k.dtype).view(batch, rows, -1, group, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    visible = torch.arange(k.shape[2], device=q.device) < ends[:, None, :, None]
    mask = visible.expand(-1, -1, -1, k.shape[2]).repeat(1, 1, group, 1)
    scale = kv.k_scale / math.sqrt(dim)
    out = torch.nn.functional.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale)
    unfolded: Tensor = out.unflatten(2, (group, rows))
    return unfolded.permute(0, 3, 1, 2, 4).flatten(2, 3) * kv.v_scale
