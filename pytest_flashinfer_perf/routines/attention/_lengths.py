"""Actual lengths of requests, with their offsets and the number of query-key pairs."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines._offsets import indptr, slices
from pytest_flashinfer_perf.routines.attention._params import PrefillParams


class Lengths(NamedTuple):
    """Lengths per request, and the offsets of their tokens."""

    q: Tensor
    kv: Tensor
    q_indptr: Tensor
    kv_indptr: Tensor

    @property
    def spans(self) -> list[tuple[slice, slice]]:
        """Each request's rows of the queries and of the keys, on the host."""
        return list(zip(slices(self.q_indptr), slices(self.kv_indptr), strict=True))


def draw(batch: int, longest: int, random: bool, rand: torch.Generator) -> Tensor:
    """Random lengths up to `longest`, or all of them `longest`."""
    if not random:
        return torch.full((batch,), longest, dtype=torch.int32, device=rand.device)
    return torch.randint(1, longest + 1, (batch,), dtype=torch.int32, device=rand.device, generator=rand)


def prefill(p: PrefillParams, rand: torch.Generator) -> Lengths:
    """The queries: the whole prompt if it is as long as its keys, else the end of a longer sequence."""
    q = draw(p.batch_size, p.s_qo, p.random_actual_seq_len, rand)
    kv = q if p.s_qo == p.s_kv else draw(p.batch_size, p.s_kv, p.random_actual_seq_len, rand).maximum(q)
    if p.empty_first:
        q, kv = (lens.index_fill(0, torch.zeros(1, dtype=torch.int64, device=lens.device), 0) for lens in (q, kv))
    return Lengths(q, kv, indptr(q), indptr(kv))


def pairs(q: Tensor, kv: Tensor, *, causal: bool) -> int:
    """Query-key pairs that are computed, the causal diagonal among them."""
    queries, keys = q.long(), kv.long()
    hidden = queries * (queries - 1) // 2 if causal else 0
    return int((queries * keys - hidden).sum())


def facts(lengths: Tensor, kv: Tensor | None = None) -> dict[str, int]:
    """The average length, rounded down as in upstream's benchmark; also that of the keys if `lengths` are queries'."""
    of_keys = {"avg_actual_kv_len": _average(kv)} if kv is not None else {}
    return {"avg_actual_seq_len": _average(lengths), **of_keys}


def _average(lengths: Tensor) -> int:
    return int(lengths.sum()) // len(lengths)
