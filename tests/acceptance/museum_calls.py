"""Calls that show exhibits of museum.toml where the suite has no such case for both releases.

What a call needs is made here, since releases before 0.6.12 have no trace templates with inputs. Each test is a row of
`perf.time`. Answers are compared where they tell the releases apart, or where torch has the same function.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

if TYPE_CHECKING:
    from pytest_flashinfer_perf.plugin.fixture import Perf

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(0))


def digits(low: int, end: int, *shape: int) -> Tensor:
    seeded = torch.Generator(DEVICE).manual_seed(0)
    return torch.randint(low, end, shape, dtype=torch.uint8, device=DEVICE, generator=seeded)


@pytest.mark.parametrize(("rows", "hidden"), [(16, 4096), (1024, 8192), (8192, 8192)])
def test_rmsnorm(perf: Perf, rows: int, hidden: int) -> None:
    from flashinfer.norm import rmsnorm

    x, weight = normal(rows, hidden), normal(hidden)
    expected = partial(torch.nn.functional.rms_norm, x, (hidden,), weight, 1e-6)
    perf.time(rmsnorm, x, weight, out=torch.empty_like(x), reference=expected)


@pytest.mark.parametrize("rows", [96, 350_000])
def test_last_rows_of_rmsnorm(perf: Perf, rows: int) -> None:
    """Beyond 2^32 elements, a place that is computed in 32 bits is that of one of the first elements."""
    from flashinfer.norm import rmsnorm

    hidden, last = 12_288, 64
    x, weight = normal(rows, hidden), normal(hidden)

    def last_rows(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        rmsnorm(x, weight, out=out)
        return out[-last:]

    expected = partial(torch.nn.functional.rms_norm, x[-last:], (hidden,), weight, 1e-6)
    perf.time(last_rows, x, weight, torch.full_like(x, math.nan), reference=expected)


@pytest.mark.parametrize("rows", [1, 16])
def test_sampling(perf: Perf, rows: int) -> None:
    from flashinfer.sampling import top_k_top_p_sampling_from_logits

    logits = normal(rows, 128_256, dtype=torch.float32)
    perf.time(top_k_top_p_sampling_from_logits, logits, 50, 0.9, seed=42, offset=0)


@pytest.mark.parametrize("rows", [64, 256])
def test_top_k_ties(perf: Perf, rows: int) -> None:
    from flashinfer import top_k

    perf.time(top_k, uniform(rows, 65_536), 2048, tie_break=1)


def test_top_k_of_alike_scores(perf: Perf) -> None:
    """Scores that begin with the same eight bits, more than the 16,384 for which the kernel has room."""
    from flashinfer import top_k

    def above_one(scores: Tensor, k: int) -> Any:
        return top_k(scores, k, sorted=True)[0] - 1

    scores = 1 + uniform(64, 131_072) / 64
    perf.time(above_one, scores, 2048, reference=lambda: scores.topk(2048).values - 1)


@pytest.mark.parametrize("tokens", [4096, 32_768])
def test_append_mla(perf: Perf, tokens: int) -> None:
    from flashinfer.page import append_paged_mla_kv_cache

    batch = 16
    index: dict[str, Any] = {"dtype": torch.int32, "device": DEVICE}
    pages, each = tokens // 64, tokens // batch
    parts = normal(tokens, 512), normal(tokens, 64)
    caches = tuple(torch.zeros_like(part).view(pages, 64, -1) for part in parts)
    perf.time(
        append_paged_mla_kv_cache,
        *parts,
        torch.arange(batch, **index).repeat_interleave(each),
        torch.arange(each, **index).repeat(batch),
        *caches,
        torch.arange(pages, **index),
        torch.arange(batch + 1, **index) * (pages // batch),
        torch.full((batch,), 64, **index),
        out=caches,
        reference=lambda: tuple(part.view(pages, 64, -1) for part in parts),
    )


@pytest.mark.parametrize("tokens", [4, 16])
def test_moe_mxfp4(perf: Perf, tokens: int) -> None:
    """Both releases get weights and scales as they want them: the later one interleaves them."""
    from flashinfer import fused_moe

    experts, hidden, inner = 256, 4096, 2048
    sizes = ((2 * inner, hidden), (hidden, inner))
    weights = [digits(0, 256, experts, rows, columns // 2) for rows, columns in sizes]
    scales = [digits(118, 123, experts, rows, columns // 32) for rows, columns in sizes]
    if hasattr(fused_moe, "interleave_moe_weights_for_sm90_mixed_gemm"):
        weights = [fused_moe.interleave_moe_weights_for_sm90_mixed_gemm(one, "fp4") for one in weights]
        scales = [fused_moe.interleave_moe_scales_for_sm90_mixed_gemm(one) for one in scales]
    share, chosen = uniform(tokens, experts).topk(6)
    perf.time(
        fused_moe.cutlass_fused_moe,
        normal(tokens, hidden),
        chosen.int(),
        share / share.sum(dim=1, keepdim=True),
        *weights,
        torch.bfloat16,
        quant_scales=[one.view(torch.int32) for one in scales],
        use_w4_group_scaling=True,
    )


@pytest.mark.parametrize("tokens", [1024])
def test_window_of_fp8(perf: Perf, tokens: int) -> None:
    """A kernel that waits for itself does not end."""
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    ends = torch.tensor([0, tokens], dtype=torch.int32, device=DEVICE)
    workspace = torch.empty(128 * 2**20, dtype=torch.uint8, device=DEVICE)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace, backend="fa3")
    fp8: dict[str, Any] = dict.fromkeys(("q_data_type", "kv_data_type"), torch.float8_e4m3fn)
    plan: dict[str, Any] = {"causal": True, "window_left": 256, "o_data_type": torch.bfloat16, **fp8}
    wrapper.plan(ends, ends, 32, 8, 128, 128, **plan)
    tensors = [normal(tokens, heads, 128).to(torch.float8_e4m3fn) for heads in (32, 8, 8)]
    perf.time(wrapper.run, *tensors, *(torch.ones(heads, device=DEVICE) for heads in (32, 8, 8)))


@pytest.mark.parametrize("tokens", [512, 8192])
def test_gdn(perf: Perf, tokens: int) -> None:
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    query, value = normal(tokens, 16, 128), normal(tokens, 32, 128)
    key = torch.nn.functional.normalize(normal(tokens, 16, 128), dim=-1)
    decay, beta = (low + (1 - low) * uniform(tokens, 32) for low in (0.9, 0.0))
    ends = torch.tensor([0, tokens], device=DEVICE)
    perf.time(chunk_gated_delta_rule, query, key, value, decay, beta, cu_seqlens=ends)
