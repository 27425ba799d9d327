"""Attention in fp32, the plain way: what every backend's answer is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines.attention._paged import pages_per_request

SCORES_AT_ONCE = 1 << 27


class Answer(NamedTuple):
    out: Tensor  # [rows, query heads, dim]
    lse: Tensor  # [rows, query heads], in base 2 as FlashInfer returns it


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Answer:
    """One request's rows [rows, query heads, dim] over its keys and values [KV heads, tokens, dim].

    The rows are the last of the sequence: the mask is aligned at the bottom right.
    """
    keys, values = k.float(), v.float()
    rows, tokens = q.shape[0], k.shape[1]
    seen = torch.arange(tokens - rows, tokens, device=q.device) if causal else None
    step = max(1, SCORES_AT_ONCE // (q.shape[1] * tokens))
    blocks = [_attend_rows(q[i : i + step], keys, values, scale, _part(seen, i, step)) for i in range(0, rows, step)]
    return Answer(torch.cat([block.out for block in blocks]), torch.cat([block.lse for block in blocks]))


def _part(seen: Tensor | None, start: int, step: int) -> Tensor | None:
    return None if seen is None else seen[start : start + step]


def _attend_rows(q: Tensor, k: Tensor, v: Tensor, scale: float, last_seen: Tensor | None) -> Answer:
    grouped = q.float().unflatten(1, (k.shape[0], -1))
    scores = torch.einsum("shgd,htd->hgst", grouped, k) * scale
    if last_seen is not None:
        scores.masked_fill_(torch.arange(k.shape[1], device=q.device) > last_seen[:, None], -math.inf)
    lse = scores.logsumexp(-1) / math.log(2.0)
    out = torch.einsum("hgst,htd->shgd", scores.softmax(-1), v)
    return Answer(out.flatten(1, 2), lse.permute(2, 0, 1).flatten(1, 2))


def requests(
    q: Tensor, k: Tensor, v: Tensor, block_tables: Tensor, lens: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each one's rows, as many for all, and its keys and values out of the pages that the table says are its own."""
    for rows, owned, length in zip(q.chunk(len(lens)), block_tables, lens.tolist(), strict=True):
        yield rows, read_pages(k, owned, length), read_pages(v, owned, length)


def read_pages(side: Tensor, owned: Tensor, length: int) -> Tensor:
    """A request's tokens [heads, length, dim] out of its pages [heads, page, dim], in the order of its page table."""
    used = owned[: pages_per_request(length, side.shape[2])]
    return side[used].transpose(0, 1).flatten(1, 2)[:, :length]


def joined(answers: list[Answer], v_scale: float, *, lse: bool) -> tuple[Tensor, ...]:
    """The requests one after the other, as the kernels write them."""
    out = torch.cat([answer.out for answer in answers]) * v_scale
    return (out, torch.cat([answer.lse for answer in answers])) if lse else (out,)
