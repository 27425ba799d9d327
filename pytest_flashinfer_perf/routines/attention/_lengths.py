"""Actual lengths of requests, with their offsets and the number of query-key pairs.

Random lengths are those of `flashinfer_benchmark.py` for the same seed: it draws them before anything else, for both
prefills on the CPU, for decode and MLA on the GPU, and numbers of a GPU's generator cannot be had without one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines._offsets import indptr, slices
from pytest_flashinfer_perf.routines.attention._params import AttentionParams, PrefillParams
from pytest_flashinfer_perf.spec.dtypes import TORCH, is_fp8


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


def decode(p: AttentionParams, rand: torch.Generator) -> Tensor:
    """The lengths of the keys, the first numbers of the generator; at least as many as there are queries."""
    return draw(p.batch_size, p.s_kv, p.random_actual_seq_len, rand).clamp_min(p.s_qo)


def prefill(p: PrefillParams, rand: torch.Generator) -> Lengths:
    """The queries: the whole prompt if it is as long as its keys, else the end of a longer sequence."""
    on_cpu = torch.Generator().manual_seed(rand.initial_seed())
    q = draw(p.batch_size, p.s_qo, p.random_actual_seq_len, on_cpu)
    kv = q if p.s_qo == p.s_kv else draw(p.batch_size, p.s_kv, p.random_actual_seq_len, on_cpu).maximum(q)
    q, kv = q.to(rand.device), kv.to(rand.device)
    if p.empty_first:
        q, kv = (lens.index_fill(0, torch.zeros(1, dtype=torch.int64, device=lens.device), 0) for lens in (q, kv))
    return Lengths(q, kv, indptr(q), indptr(kv))


def pairs(q: Tensor, kv: Tensor, *, causal: bool) -> int:
    """Query-key pairs that are computed, the causal diagonal among them."""
    queries, keys = q.long(), kv.long()
    hidden = queries * (queries - 1) // 2 if causal else 0
    return int((queries * keys - hidden).sum())


def facts(p: AttentionParams, lengths: Tensor, kv: Tensor | None = None) -> dict[str, int | bool]:
    """The average length, rounded down as in upstream's benchmark; also that of the keys if `lengths` are queries'."""
    of_keys = {"avg_actual_kv_len": average(kv)} if kv is not None else {}
    other = p.random_actual_seq_len and kv is None and lengths.device.type == "cpu"
    return {"avg_actual_seq_len": average(lengths), **of_keys, "upstream_seq_lens": not other}


def average(lengths: Tensor) -> int:
    return int(lengths.sum()) // len(lengths)


# Normally distributed tensors, FP8 ones scaled by their own largest magnitude.


def unquantised(shape: tuple[int, ...], dtype: str, rand: torch.Generator) -> Tensor:
    """Draw in bfloat16 if the values are quantised to FP8 afterwards."""
    made_in = torch.bfloat16 if is_fp8(dtype) else TORCH[dtype]
    return torch.randn(shape, dtype=made_in, device=rand.device, generator=rand)


def normal(shape: tuple[int, ...], dtype: str, rand: torch.Generator) -> _narrow.PerTensor:
    """The stored values, and the scale that restores the drawn ones."""
    drawn = unquantised(shape, dtype, rand)
    return _narrow.per_tensor(drawn, TORCH[dtype]) if is_fp8(dtype) else _narrow.PerTensor(drawn, 1.0)
