"""Plain attention in fp32, with which the answers of all backends are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking.check import Rows
from pytest_flashinfer_perf.routines._offsets import ChosenRows, edges
from pytest_flashinfer_perf.routines.attention._shared import pages_per_request

SCORES_AT_ONCE = 1 << 27


class AttentionAnswer(NamedTuple):
    out: Tensor  # [rows, query heads, dim]
    lse: Tensor  # [rows, query heads], in base 2 as FlashInfer returns it


class Request(NamedTuple):
    """A request: its rows of the queries, which end the sequence, and a function for its keys and values."""

    rows: slice
    read: Callable[[], tuple[Tensor, Tensor]]


def answers(
    q: Tensor, requests: Iterable[Request], *, scale: float, causal: bool, rows: Tensor | None
) -> Iterator[AttentionAnswer]:
    """The answer of each request with rows; if `wanted` is given, only its rows."""
    chosen = ChosenRows(rows)
    for request in requests:
        part, count = chosen.of(request.rows), request.rows.stop - request.rows.start
        positions = torch.arange(count, device=q.device)[part]
        if len(positions):
            k, v = request.read()
            last_token = k.shape[1] - count + positions if causal else None
            yield attend(q[request.rows][part], k, v, scale=scale, last_token=last_token)


def attend(q: Tensor, k: Tensor, v: Tensor, *, scale: float, last_token: Tensor | None) -> AttentionAnswer:
    """Rows [rows, query heads, dim] over keys and values [KV heads, tokens, dim]; `last_token` is each row's."""
    keys, values = k.float(), v.float()
    rows, tokens = q.shape[0], k.shape[1]
    step = max(1, SCORES_AT_ONCE // (q.shape[1] * tokens))
    parts = [slice(i, i + step) for i in range(0, rows, step)]
    last_tokens = [None if last_token is None else last_token[part] for part in parts]
    blocks = [_attend_rows(q[part], keys, values, scale, to) for part, to in zip(parts, last_tokens, strict=True)]
    return AttentionAnswer(torch.cat([block.out for block in blocks]), torch.cat([block.lse for block in blocks]))


def _attend_rows(q: Tensor, k: Tensor, v: Tensor, scale: float, last_token: Tensor | None) -> AttentionAnswer:
    grouped = q.float().unflatten(1, (k.shape[0], -1))
    scores = torch.einsum("shgd,htd->hgst", grouped, k) * scale
    if last_token is not None:
        scores.masked_fill_(torch.arange(k.shape[1], device=q.device) > last_token[:, None], -math.inf)
    lse = scores.logsumexp(-1) / math.log(2.0)
    out = torch.einsum("hgst,htd->shgd", scores.softmax(-1), v)
    return AttentionAnswer(out.flatten(1, 2), lse.permute(2, 0, 1).flatten(1, 2))


def paged(rows_each: int, k: Tensor, v: Tensor, block_tables: Tensor, lens: Tensor) -> Iterator[Request]:
    """Requests with the same number of rows each, and keys and values in the pages of the page table."""
    for i, (owned, length) in enumerate(zip(block_tables, lens.tolist(), strict=True)):
        rows = slice(i * rows_each, (i + 1) * rows_each)
        yield Request(rows, partial(read_pages, k, v, owned, length))


def ends(rows_each: int, lens: Tensor) -> Rows:
    """The first and last rows of these requests."""
    return edges(torch.arange(len(lens) + 1, device=lens.device) * rows_each)


def read_pages(k: Tensor, v: Tensor, owned: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """A request's tokens [heads, length, dim] from its pages [heads, page, dim], in the order of its page table."""
    used = owned[: pages_per_request(length, k.shape[2])]
    keys, values = (side[used].transpose(0, 1).flatten(1, 2)[:, :length] for side in (k, v))
    return keys, values


def joined(of_requests: Iterable[AttentionAnswer], v_scale: float, *, lse: bool) -> tuple[Tensor, ...]:
    """The requests one after the other, as the kernels write them."""
    answers = list(of_requests)
    out = torch.cat([answer.out for answer in answers]) * v_scale
    return (out, torch.cat([answer.lse for answer in answers])) if lse else (out,)
