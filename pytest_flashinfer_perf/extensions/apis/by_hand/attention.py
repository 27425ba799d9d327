"""Attention as its templates cannot plan it: mixed batches, sliding windows, attention sinks, block-sparse masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.extensions.apis.by_hand import Mended, Output, Template, sized

ROWS_AT_ONCE = 16
WORKSPACE_BYTES = 128 << 20
ROWS_OF_HEADS = ("rows", "num_qo_heads", "head_dim")
HEADS = {"num_qo_heads": 32, "num_kv_heads": 8, "head_dim": 128}
TYPES = {"q_data_type": torch.bfloat16, "kv_data_type": torch.bfloat16}
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


def _batch(at: Any, device: str) -> tuple[Tensor, Cache, dict[str, Tensor]]:
    """Queries, a paged cache and the page table of equally long requests, whose pages lie scattered."""
    each = -(-at.kv_len // at.page_size)
    q = torch.randn(at.batch_size * at.qo_len, at.num_qo_heads, at.head_dim, dtype=torch.bfloat16, device=device)
    shape = (at.batch_size * each, at.page_size, at.num_kv_heads, at.head_dim)
    cache = tuple(torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(2))
    steps = torch.arange(at.batch_size + 1, dtype=torch.int32, device=device)
    table = {
        "qo_indptr": steps * at.qo_len,
        "kv_indptr": steps * each,
        "kv_indices": torch.randperm(at.batch_size * each, device=device).int(),
        "kv_lens": torch.full((at.batch_size,), at.kv_len, dtype=torch.int32, device=device),
    }
    return q, (cache[0], cache[1]), table


def _heads(at: Any) -> dict[str, Any]:
    return {"num_qo_heads": at.num_qo_heads, "num_kv_heads": at.num_kv_heads, **TYPES}


@sized(batch_size=None, qo_len=16, kv_len=None, **HEADS, page_size=16)
def _mixed_init(at: Any, device: str) -> dict[str, Any]:
    q, cache, table = _batch(at, device)
    table["kv_len_arr"] = table.pop("kv_lens")
    widths = {"head_dim_qk": at.head_dim, "head_dim_vo": at.head_dim, "page_size": at.page_size, "causal": True}
    return {"plan": {**table, **widths, **_heads(at)}, "run": {"q": q, "kv_cache": cache}}


def _mixed(
    q: Tensor, kv_cache: Cache, qo_indptr: Tensor, kv_indptr: Tensor, kv_indices: Tensor, kv_len_arr: Tensor
) -> tuple[Tensor, Tensor]:
    return _paged(q, kv_cache, qo_indptr, kv_indptr, kv_indices, kv_len_arr, causal=True)


def _prefill_plan(table: dict[str, Tensor], at: Any) -> dict[str, Any]:
    last = (table["kv_lens"] - 1) % at.page_size + 1
    pages = {f"paged_{name}": table[name] for name in ("kv_indptr", "kv_indices")}
    widths = {"head_dim_qk": at.head_dim, "page_size": at.page_size, "causal": True, **_heads(at)}
    return {"qo_indptr": table["qo_indptr"], **pages, "paged_kv_last_page_len": last, **widths}


@sized(batch_size=None, qo_len=1, kv_len=None, window_left=127, **HEADS, page_size=16)
def _window_init(at: Any, device: str) -> dict[str, Any]:
    q, cache, table = _batch(at, device)
    plan = {**_prefill_plan(table, at), "window_left": at.window_left}
    return {"plan": plan, "run": {"q": q, "paged_kv_cache": cache}}


@sized(batch_size=None, qo_len=1, kv_len=None, **HEADS, page_size=16)
def _sink_init(at: Any, device: str) -> dict[str, Any]:
    """The sinks and the scale follow the cache in `run`, without names of their own."""
    q, cache, table = _batch(at, device)
    further = (torch.randn(at.num_qo_heads, dtype=torch.float32, device=device), 1.0 / math.sqrt(at.head_dim))
    return {"plan": _prefill_plan(table, at), "run": {"q": q, "paged_kv_cache": cache, "args": further}}


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


def _operands(at: Any, device: str) -> Iterator[Tensor]:
    """Queries, keys and values; rows come first."""
    for length, heads in ((at.qo_len, at.num_qo_heads), (at.kv_len, at.num_kv_heads), (at.kv_len, at.num_kv_heads)):
        yield torch.randn(length, heads, at.head_dim, dtype=torch.bfloat16, device=device)


@sized(qo_len=None, kv_len=None, block_size=64, **HEADS)
def _blocks_init(at: Any, device: str) -> dict[str, Any]:
    """Blocks of one size, the same for all heads."""
    q, k, v = _operands(at, device)
    [kept] = _kept(-(-at.qo_len // at.block_size), at.kv_len // at.block_size, 1, device)
    counts = torch.cat([kept.new_zeros(1, dtype=torch.int64), kept.sum(-1).cumsum(0)])
    mask = {"indptr": counts.int(), "indices": kept.nonzero()[:, 1].int()}
    sizes = {"M": at.qo_len, "N": at.kv_len, "R": at.block_size, "C": at.block_size, "head_dim": at.head_dim}
    plan = {**mask, **sizes, **_heads(at), "o_data_type": torch.bfloat16}
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


@sized(qo_len=None, kv_len=None, num_blocks=4, **HEADS)
def _uneven_blocks_init(at: Any, device: str) -> dict[str, Any]:
    """Blocks of many sizes, other ones for each KV head; heads come first."""
    q, k, v = (operand.transpose(0, 1).contiguous() for operand in _operands(at, device))
    plan = {
        "block_mask_map": _kept(at.num_blocks, at.num_blocks, at.num_kv_heads, device),
        "block_row_sz": _uneven(at.qo_len, at.num_blocks, at.num_kv_heads, device),
        "block_col_sz": _uneven(at.kv_len, at.num_blocks, at.num_kv_heads, device),
        "head_dim": at.head_dim,
        **_heads(at),
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
