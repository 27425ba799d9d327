"""Attention as its templates cannot plan it: mixed batches, sliding windows, attention sinks, block-sparse masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines.derived.by_hand import Mended, Output, Template

ROWS_AT_ONCE = 16
WORKSPACE_BYTES = 128 << 20
ROWS_OF_HEADS = ("rows", "num_qo_heads", "head_dim")
Cache = tuple[Tensor, Tensor]


def attended(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, sink: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Rows [rows, heads, dim] over [tokens, KV heads, dim], with the log-sum-exp in base 2.

    `visible` is [heads or 1, rows, tokens]. A sink is a further logit of each head, of a token without a value.
    """
    groups = q.float().unflatten(1, (k.shape[1], -1))
    logits = torch.einsum("shgd,thd->hgst", groups, k.float()).flatten(0, 1) / math.sqrt(q.shape[-1])
    logits = logits.masked_fill(~visible, -math.inf)
    if sink is not None:
        logits = torch.cat([logits, sink.float()[:, None, None].expand(-1, len(q), 1)], -1)
    lse = logits.logsumexp(-1)
    shares = (logits - lse[..., None]).exp()[..., : k.shape[0]]
    out = torch.einsum("hgst,thd->shgd", shares.unflatten(0, (k.shape[1], -1)), v.float()).flatten(1, 2)
    return out, lse.T / math.log(2.0)


def _of_request(q: Tensor, cache: Cache, *, causal: bool, window: int, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """A request's rows, which end its sequence: a few rows at once, over what the first to the last of them see."""
    tokens, count = len(cache[0]), len(q)
    parts = []
    for rows in torch.arange(count, device=q.device).split(ROWS_AT_ONCE):
        last = tokens - count + rows if causal else torch.full_like(rows, tokens - 1)
        start = max(0, int(last[0]) - window) if window >= 0 else 0
        seen = slice(start, int(last[-1]) + 1)
        positions = torch.arange(seen.start, seen.stop, device=q.device)
        visible = positions <= last[:, None]
        if window >= 0:
            visible &= positions >= last[:, None] - window
        parts.append(attended(q[rows], cache[0][seen], cache[1][seen], visible[None], sink))
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def _paged(
    q: Tensor,
    cache: Cache,
    qo_indptr: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_lens: Tensor,
    *,
    causal: bool,
    window: int = -1,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    rows, pages = qo_indptr.tolist(), kv_indptr.tolist()
    answers = []
    for nth, length in enumerate(kv_lens.tolist()):
        owned = kv_indices[pages[nth] : pages[nth + 1]].long()
        own = tuple(side[owned].flatten(0, 1)[:length] for side in cache)
        part = q[rows[nth] : rows[nth + 1]]
        answers.append(_of_request(part, (own[0], own[1]), causal=causal, window=window, sink=sink))
    return torch.cat([out for out, _ in answers]), torch.cat([lse for _, lse in answers])


def _batch(
    batch_size: int, qo_len: int, kv_len: int, heads: tuple[int, int, int], page_size: int, device: str
) -> tuple[Tensor, Cache, dict[str, Tensor]]:
    """Queries, a paged cache and the page table of equally long requests, whose pages lie scattered."""
    num_qo_heads, num_kv_heads, head_dim = heads
    each = -(-kv_len // page_size)
    q = torch.randn(batch_size * qo_len, num_qo_heads, head_dim, dtype=torch.bfloat16, device=device)
    shape = (batch_size * each, page_size, num_kv_heads, head_dim)
    cache = tuple(torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    steps = torch.arange(batch_size + 1, dtype=torch.int32, device=device)
    table = {
        "qo_indptr": steps * qo_len,
        "kv_indptr": steps * each,
        "kv_indices": torch.randperm(batch_size * each, device=device).int(),
        "kv_lens": torch.full((batch_size,), kv_len, dtype=torch.int32, device=device),
    }
    return q, (cache[0], cache[1]), table


def _mixed_init(
    *,
    batch_size: int,
    qo_len: int = 16,
    kv_len: int,
    num_qo_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    page_size: int = 16,
    device: str = "cuda",
    seed: int = 0,
) -> dict[str, Any]:
    torch.manual_seed(seed)
    heads = (num_qo_heads, num_kv_heads, head_dim)
    q, cache, table = _batch(batch_size, qo_len, kv_len, heads, page_size, device)
    widths = {"num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "page_size": page_size, "causal": True}
    types = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
    plan = {**table, "head_dim_qk": head_dim, "head_dim_vo": head_dim, **widths, **types}
    plan["kv_len_arr"] = plan.pop("kv_lens")
    return {"plan": plan, "run": {"q": q, "kv_cache": cache}}


def _mixed(
    q: Tensor, kv_cache: Cache, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor, kv_len_arr: Tensor
) -> tuple[Tensor, Tensor]:
    return _paged(q, kv_cache, qo_indptr, kv_indptr, kv_indices, kv_len_arr, causal=True)


def _prefill_plan(table: dict[str, Tensor], heads: tuple[int, int, int], page_size: int) -> dict[str, Any]:
    last = (table["kv_lens"] - 1) % page_size + 1
    return {
        "qo_indptr": table["qo_indptr"],
        "paged_kv_indptr": table["kv_indptr"],
        "paged_kv_indices": table["kv_indices"],
        "paged_kv_last_page_len": last,
        "num_qo_heads": heads[0],
        "num_kv_heads": heads[1],
        "head_dim_qk": heads[2],
        "page_size": page_size,
        "causal": True,
        "q_data_type": torch.bfloat16,
        "kv_data_type": torch.bfloat16,
    }


def _window_init(
    *,
    batch_size: int,
    qo_len: int = 1,
    kv_len: int,
    window_left: int = 127,
    num_qo_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    page_size: int = 16,
    device: str = "cuda",
    seed: int = 0,
) -> dict[str, Any]:
    torch.manual_seed(seed)
    heads = (num_qo_heads, num_kv_heads, head_dim)
    q, cache, table = _batch(batch_size, qo_len, kv_len, heads, page_size, device)
    plan = {**_prefill_plan(table, heads, page_size), "window_left": window_left}
    return {"plan": plan, "run": {"q": q, "paged_kv_cache": cache}}


def _sink_init(
    *,
    batch_size: int,
    qo_len: int = 1,
    kv_len: int,
    num_qo_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    page_size: int = 16,
    device: str = "cuda",
    seed: int = 0,
) -> dict[str, Any]:
    """The sinks and the scale follow the cache in `run`, without names of their own."""
    torch.manual_seed(seed)
    heads = (num_qo_heads, num_kv_heads, head_dim)
    q, cache, table = _batch(batch_size, qo_len, kv_len, heads, page_size, device)
    sinks = torch.randn(num_qo_heads, dtype=torch.float32, device=device)
    further = (sinks, 1.0 / math.sqrt(head_dim))
    return {"plan": _prefill_plan(table, heads, page_size), "run": {"q": q, "paged_kv_cache": cache, "args": further}}


def _prefill(
    q: Tensor,
    paged_kv_cache: Cache,
    qo_indptr: Tensor,
    paged_kv_indptr: Tensor,
    paged_kv_indices: Tensor,
    paged_kv_last_page_len: Tensor,
    page_size: int,
    window_left: int = -1,
    args: tuple[Any, ...] = (None,),
) -> Tensor:
    lens = (paged_kv_indptr.diff() - 1) * page_size + paged_kv_last_page_len
    table = (qo_indptr, paged_kv_indptr, paged_kv_indices, lens)
    return _paged(q, paged_kv_cache, *table, causal=True, window=window_left, sink=args[0])[0]


def _packed(usual: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Queries, keys and values in one tensor, the layout's name, and memory to work in, none of which `init` makes."""

    def init(**axes: Any) -> dict[str, Any]:
        made = usual(**axes)
        one = made["qkv"]
        packed = torch.randn(len(one), 3, *one.shape[1:], dtype=one.dtype, device=one.device)
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=one.device)
        return {**made, "qkv": packed, "input_layout": "PACKED_QKV", "workspace_buffer": workspace}

    return init


# Block-sparse attention, whose templates make no plan and answer without a mask.


def _kept(rows: int, columns: int, heads: int, device: str) -> Tensor:
    """A third of the blocks, and in each row of blocks at least one."""
    kept = torch.rand(heads, rows, columns, device=device) < 1 / 3
    kept[..., 0] |= ~kept.any(-1)
    return kept


def _blocks_init(
    *,
    qo_len: int,
    kv_len: int,
    block_size: int = 64,
    num_qo_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    device: str = "cuda",
    seed: int = 0,
) -> dict[str, Any]:
    """Blocks of one size, the same for all heads."""
    torch.manual_seed(seed)
    q, k, v = (
        torch.randn(length, heads, head_dim, dtype=torch.bfloat16, device=device)
        for length, heads in ((qo_len, num_qo_heads), (kv_len, num_kv_heads), (kv_len, num_kv_heads))
    )
    [kept] = _kept(-(-qo_len // block_size), kv_len // block_size, 1, device)
    counts = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.sum(-1).cumsum(0)])
    plan = {
        "indptr": counts.int(),
        "indices": kept.nonzero()[:, 1].int(),
        "M": qo_len,
        "N": kv_len,
        "R": block_size,
        "C": block_size,
        "num_qo_heads": num_qo_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "q_data_type": torch.bfloat16,
        "kv_data_type": torch.bfloat16,
        "o_data_type": torch.bfloat16,
    }
    return {"plan": plan, "run": {"q": q, "k": k, "v": v}}


def _blocks(q: Tensor, k: Tensor, v: Tensor, indptr: Tensor, indices: Tensor, R: int, C: int) -> Tensor:
    """Each row of blocks over the columns that it keeps, so that only these count as work."""
    starts, outputs = indptr.tolist(), []
    for nth, rows in enumerate(q.split(R)):
        columns = indices[starts[nth] : starts[nth + 1]].long()
        tokens = (columns[:, None] * C + torch.arange(C, device=q.device)).flatten()
        visible = torch.ones(1, len(rows), len(tokens), dtype=torch.bool, device=q.device)
        outputs.append(attended(rows, k[tokens], v[tokens], visible)[0])
    return torch.cat(outputs)


def _uneven(total: int, parts: int, heads: int, device: str) -> Tensor:
    """The sizes of as many blocks for each head, which are not all equal."""
    cuts = torch.stack([torch.randperm(total - 1, device=device)[: parts - 1].sort().values + 1 for _ in range(heads)])
    edges = torch.cat([cuts.new_zeros(heads, 1), cuts, cuts.new_full((heads, 1), total)], 1)
    return edges.diff(dim=1).int()


def _uneven_blocks_init(
    *,
    qo_len: int,
    kv_len: int,
    num_blocks: int = 4,
    num_qo_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    device: str = "cuda",
    seed: int = 0,
) -> dict[str, Any]:
    """Blocks of many sizes, other ones for each KV head; heads come first."""
    torch.manual_seed(seed)
    q, k, v = (
        torch.randn(heads, length, head_dim, dtype=torch.bfloat16, device=device)
        for length, heads in ((qo_len, num_qo_heads), (kv_len, num_kv_heads), (kv_len, num_kv_heads))
    )
    plan = {
        "block_mask_map": _kept(num_blocks, num_blocks, num_kv_heads, device),
        "block_row_sz": _uneven(qo_len, num_blocks, num_kv_heads, device),
        "block_col_sz": _uneven(kv_len, num_blocks, num_kv_heads, device),
        "num_qo_heads": num_qo_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "q_data_type": torch.bfloat16,
        "kv_data_type": torch.bfloat16,
    }
    return {"plan": plan, "run": {"q": q, "k": k, "v": v, "out": None}}  # which the kernel wants in another shape


def _uneven_blocks(
    q: Tensor, k: Tensor, v: Tensor, block_mask_map: Tensor, block_row_sz: Tensor, block_col_sz: Tensor
) -> Tensor:
    group = len(q) // len(k)
    outputs = []
    for nth, (kept, rows, columns) in enumerate(zip(block_mask_map, block_row_sz, block_col_sz, strict=True)):
        own = q[nth * group : (nth + 1) * group].transpose(0, 1)
        seen_by = kept.repeat_interleave(columns.long(), 1)
        parts = [
            attended(part, k[nth, seen][:, None], v[nth, seen][:, None], seen[seen][None, None])[0]
            for part, seen in zip(own.split(rows.tolist()), seen_by, strict=True)
        ]
        outputs.append(torch.cat(parts).transpose(0, 1))
    return torch.cat(outputs)


PREFILL = {"output": Output(ROWS_OF_HEADS)}
TEMPLATES = {
    "flashinfer.attention._core.BatchAttention.run": Mended(_mixed_init, _mixed),
    "flashinfer.prefill.trtllm_fmha_v2_prefill": Mended(around_init=_packed),
    "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper.run:sliding_window": Template(
        "gqa_paged", _window_init, _prefill, PREFILL
    ),
    "flashinfer.attention._core.BatchAttentionWithAttentionSinkWrapper.run:attention_sink": Template(
        "gqa_paged", _sink_init, _prefill, PREFILL
    ),
    "flashinfer.sparse.BlockSparseAttentionWrapper.run": Mended(_blocks_init, _blocks),
    "flashinfer.sparse.VariableBlockSparseAttentionWrapper.run": Mended(_uneven_blocks_init, _uneven_blocks),
}
