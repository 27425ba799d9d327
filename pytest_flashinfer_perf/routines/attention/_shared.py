"""Shared by the attention routines: tolerances, workspaces, LSE, and attention in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine import capability, devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines._narrow import largest
from pytest_flashinfer_perf.routines._offsets import indptr
from pytest_flashinfer_perf.routines.attention import _requests
from pytest_flashinfer_perf.routines.attention._requests import AttentionParams
from pytest_flashinfer_perf.spec import Routine, Shape, Tolerance
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH, bytes_of, is_fp8

P = TypeVar("P", bound=AttentionParams)
WORKSPACE_BYTES = 512 << 20
PAGES = (16, 32, 64, 128)  # that kernels of trtllm-gen, xqa and prims-ts have
PAGES_LISTED = "16, 32, 64 or 128"
PLANNED_BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
ALIASES = {"trtllm-gen-native": "trtllm-native", "prims_ts": "prims-ts"}
# Of few tokens: kernels add up probabilities that are rounded to bf16, by 2^-9, which is 0.003 in base 2.
# A sum of probabilities that were rounded to bf16 is off by up to 2**-9 of itself, its base-2 logarithm by 0.0028.
LSE = Tolerance(rtol=1e-3, atol=2e-3, scale=1e-3, absolute=3e-3)


def workspace(device: torch.device) -> Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def rows_bytes(rows: int, head_dim_in: int, head_dim_out: int) -> int:
    """Queries, outputs, their comparison in fp32, and the workspace."""
    return rows * (2 * head_dim_in + 24 * head_dim_out) + WORKSPACE_BYTES


def counters(api: Any, batch: int, q: Tensor) -> dict[str, Tensor]:
    """The counter buffer of trtllm-gen, if the API accepts one; otherwise it allocates one in every call."""
    if not capability.accepts(api, "multi_ctas_kv_counter_buffer"):
        return {}
    from flashinfer.utils import get_trtllm_gen_multi_ctas_kv_counter_bytes as counter_bytes

    size = counter_bytes(batch, q.shape[1], devices.device_of(q).processors)
    return {"multi_ctas_kv_counter_buffer": torch.zeros(size, dtype=torch.uint8, device=q.device)}


def declare_plans(routine: Routine[P, Any], backends: tuple[str, ...], of: Callable[[int], Shape[P]]) -> None:
    """Declare the tier `plan`: batches of every size, for what planning them costs."""
    routine.tier("plan")(lambda: (replace(of(batch), backends=backends) for batch in PLANNED_BATCHES))


def element_offsets(indptr: Tensor, heads: int, dim: int) -> Tensor:
    return indptr.long() * (heads * dim)


def planned(wrapper: Any, *args: Any, **kwargs: Any) -> Callable[[], object]:
    """Plan it, and return what plans it once more: what every new batch costs."""
    plan = partial(wrapper.plan, *args, **kwargs)
    plan()
    return plan


def resolved(wrapper: Any) -> str:
    """The backend that a wrapper chose for `auto`."""
    return str(getattr(wrapper, "resolved_backend", None) or wrapper._backend)  # noqa: SLF001 - all that 0.6.18 has


def empty_lse(p: AttentionParams, q: Tensor) -> Tensor | None:
    return torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if p.return_lse else None


def written(out: Tensor, lse: Tensor | None) -> tuple[Tensor, ...]:
    return (out,) if lse is None else (out, lse)


def returning(lse: Tensor | None) -> dict[str, Any]:
    """The keywords that make an API return the LSE."""
    return {} if lse is None else {"lse": lse, "return_lse": True}


def no_lse(p: AttentionParams, backend: str, _device: Device | None = None) -> Iterator[str]:
    if p.return_lse:
        yield f"{backend} returns no LSE: leave out return_lse"


def e4m3_alone(p: AttentionParams, backend: str) -> Iterator[str]:
    if FP8[1] in p.types:
        yield f"{backend} has fp8_e4m3 alone of the fp8 types: use fa2 for a cache in fp8_e5m2"


def tolerances(
    p: AttentionParams, *, rounds_queries: bool = False, sums_in_half: bool = False
) -> tuple[Tolerance, ...]:
    """One tolerance per output. A backend `rounds_queries` if it converts them to fp8 for an fp8 KV cache, and
    `sums_in_half` if it accumulates fp16 products in fp16.
    """
    fp8_inside = is_fp8(p.q_dtype) or (rounds_queries and is_fp8(p.kv_dtype))
    coarse = "bfloat16" in p.types or sums_in_half
    out = of_output(p.out, fp8_inside=fp8_inside, coarse=coarse)
    if FP8[1] in p.types and (fp8_inside or is_fp8(p.out)):  # whose steps are twice as wide
        out = replace(out, rtol=2 * out.rtol, atol=2 * out.atol, scale=2 * out.scale)
    return (out, LSE) if p.return_lse else (out,)


def of_output(dtype: str, *, fp8_inside: bool, coarse: bool = True) -> Tolerance:
    """The library's tests allow 1e-3 for fp16 and bf16 values near 1, 1e-2 for cuDNN and xqa, 1e-1 for fp8.

    Ours are relative to the output's size, which shrinks with the context. An e4m3 value has 3 mantissa bits: what is
    rounded to it (probabilities and queries inside fp8 kernels, fp8 outputs) is off by up to 1/16. Over a context of
    one token all roundings to an fp8 output can go one way, since its values are few: which resembles a common factor.
    """
    if is_fp8(dtype):
        return Tolerance(rtol=8e-2, atol=3e-1 if fp8_inside else 1e-1, scale=1 / 16)
    if fp8_inside:
        return Tolerance(rtol=4e-2, atol=3e-1, scale=1e-2)
    if coarse:
        return Tolerance(rtol=1e-2, atol=3e-2, scale=4e-3)
    return Tolerance(rtol=2e-3, atol=5e-3, scale=1e-3)


def gathered(k: Tensor, v: Tensor, block_tables: Tensor, compute: torch.dtype) -> tuple[Tensor, Tensor]:
    """Keys and values [batch, KV heads, tokens, dim] from their pages, in the type of the computation."""
    keys, values = (side[block_tables].transpose(1, 2).flatten(2, 3).to(compute) for side in (k, v))
    return keys, values


def folded_sdpa(q: Tensor, kv: tuple[Tensor, Tensor], ends: Tensor, scale: float) -> Tensor:
    """scaled_dot_product_attention where row r of request b of q [batch, rows, heads, dim] sees `ends[b, r]` tokens.

    The query heads of one KV head ride as rows, so that keys and values are not copied for each of them.
    """
    (k, v), rows = kv, q.shape[1]
    group, tokens = q.shape[2] // k.shape[1], k.shape[2]
    folded = q.to(k.dtype).unflatten(2, (-1, group)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    visible = torch.arange(tokens, device=q.device) < ends[:, None, :, None]
    mask = visible.expand(-1, -1, -1, tokens).repeat(1, 1, group, 1)
    out = torch.nn.functional.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale)
    unfolded: Tensor = out.unflatten(2, (group, rows)).permute(0, 3, 1, 2, 4)
    return unfolded.flatten(2, 3)


# Paged KV caches: page tables and quantised pages, made on the device from one generator.


class PageTable(NamedTuple):
    """The same pages twice: dense rows for the native APIs, CSR for the wrappers."""

    block_tables: Tensor
    indptr: Tensor
    indices: Tensor
    last_page_len: Tensor

    @property
    def csr(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.indptr, self.indices, self.last_page_len

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
    cache = _requests.unquantised((pages, 2, *rest), dtype, rand)
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
