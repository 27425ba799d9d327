"""Block-sparse attention, whose templates make no plan and answer without a mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines.derived.by_hand import Mended
from pytest_flashinfer_perf.routines.derived.by_hand.attention import attended


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


TEMPLATES = {
    "flashinfer.sparse.BlockSparseAttentionWrapper.run": Mended(_blocks_init, _blocks),
    "flashinfer.sparse.VariableBlockSparseAttentionWrapper.run": Mended(_uneven_blocks_init, _uneven_blocks),
}
