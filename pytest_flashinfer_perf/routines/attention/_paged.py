"""Paged KV caches: page tables and quantised pages, made on the device from one generator."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines._offsets import indptr
from pytest_flashinfer_perf.routines._quantise.blocks import largest
from pytest_flashinfer_perf.routines.attention import _drawn
from pytest_flashinfer_perf.spec.dtypes import TORCH, bytes_of, is_fp8


class PageTable(NamedTuple):
    """The same pages twice: dense rows for the native APIs, CSR for the wrappers."""

    block_tables: Tensor
    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor

    def copy(self) -> PageTable:
        """Copies for a wrapper, which keeps its arguments and may overwrite them."""
        return PageTable(*(t.clone() for t in self))


class KVCache(NamedTuple):
    """[pages, 2, heads, page, dim] in HND order; `k` and `v` are views of `pages`."""

    pages: Tensor
    k: Tensor
    v: Tensor
    k_scale: float
    v_scale: float


def pages_per_request(s_kv: int, page_size: int) -> int:
    return -(-s_kv // page_size)


def page_table(lens: Tensor, s_kv: int, page_size: int, rand: torch.Generator, pool: int | None = None) -> PageTable:
    """Each request owns its pages, which lie scattered over the cache; of a smaller `pool` requests share pages, and
    none has one twice.
    """
    batch, width = lens.shape[0], pages_per_request(s_kv, page_size)
    if pool is None or pool >= batch * width:
        pages = torch.randperm(batch * width, dtype=torch.int32, device=lens.device, generator=rand).view(batch, width)
    else:
        order = torch.rand(batch, pool, device=lens.device, generator=rand).argsort(1)
        pages = order[:, :width].int().contiguous()
    used = (lens + page_size - 1) // page_size
    indices = pages[torch.arange(width, device=lens.device) < used[:, None]]
    return PageTable(pages, indptr(used), indices, lens - (used - 1) * page_size)


def kv_cache(shape: tuple[int, int, int, int], dtype: str, rand: torch.Generator) -> KVCache:
    """Normally distributed keys and values of [pages, heads, page, dim]; FP8 ones by their own largest magnitude."""
    pages, *rest = shape
    cache = _drawn.unquantised((pages, 2, *rest), dtype, rand)
    if not is_fp8(dtype):
        return KVCache(cache, cache[:, 0], cache[:, 1], 1.0, 1.0)
    k_scale, v_scale = (largest(cache[:, i]) / torch.finfo(TORCH[dtype]).max for i in (0, 1))
    cache[:, 0] /= k_scale
    cache[:, 1] /= v_scale
    quantised = cache.to(TORCH[dtype])
    return KVCache(quantised, quantised[:, 0], quantised[:, 1], k_scale, v_scale)


def cache_bytes(batch: int, s_kv: int, page_size: int, token_elements: int, dtype: str) -> int:
    """The cache, twice while it is quantised."""
    tokens = batch * pages_per_request(s_kv, page_size) * page_size
    return tokens * token_elements * (2 + 1 if is_fp8(dtype) else bytes_of(dtype))


def draft_mask(batch: int, s_qo: int, causal: bool, device: torch.device) -> Tensor:
    """The mask of draft tokens, packed 32 to a word in uint16 halves as the native decode API needs it."""
    words = -(-s_qo // 32)
    visible = torch.zeros(s_qo, words * 32, dtype=torch.int64, device=device)
    visible[:, :s_qo] = torch.ones(s_qo, s_qo, dtype=torch.int64, device=device)
    if causal:
        visible = visible.tril()
    packed = (visible.view(s_qo, words, 32) << torch.arange(32, device=device)).sum(-1).to(torch.int32)
    return packed.expand(batch, s_qo, words).contiguous().view(torch.uint16)
