"""The requests of attention routines: the flags that all of them share, their lengths, and tensors drawn from those.

Random lengths are those of `flashinfer_benchmark.py` for the same seed: it draws them before anything else, for both
prefills on the CPU, for decode and MLA on the GPU, and numbers of a GPU's generator cannot be had without one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines._offsets import indptr, list_faults, listed, slices
from pytest_flashinfer_perf.spec.dtypes import FP8, HALF, TORCH, is_fp8
from pytest_flashinfer_perf.spec.params import Fault, Params, flag

DTYPES = (*HALF, *FP8)
DRAWN = (*HALF, FP8[0])  # by a search: what most kernels have


@dataclass(frozen=True)
class AttentionParams(Params):
    """The parameters of every attention routine: requests, their lengths, query heads, types."""

    batch_size: int = flag("requests", letter="b", minimum=1, draw=(1, 2, 5), most=64)
    s_qo: int = flag("longest query", default=1, letter="q", minimum=1, draw=(1, 1, 2, 4))
    s_kv: int = flag(
        "longest KV sequence", letter="s", minimum=1, draw=(1, 15, 16, 17, 64, 130), most=8192, tiles=(16, 64, 128)
    )
    num_qo_heads: int = flag("query heads", letter="h", minimum=1, draw=(1, 2, 4, 5, 8, 16))
    q_dtype: str = flag("type of the queries", default="bfloat16", letter="q", choices=DTYPES, draw=DRAWN)
    kv_dtype: str = flag("type of keys and values", default="bfloat16", letter="kv", choices=DTYPES, draw=DRAWN)
    out_dtype: str | None = flag(
        "type of the output", default=None, letter="o", same_as="q_dtype", choices=DTYPES, draw=DRAWN
    )
    causal: bool = flag("bottom-right causal mask", default=False, letter="causal")
    random_actual_seq_len: bool = flag("draw each length from 1 to the longest", default=False, letter="ragged")
    actual_seq_lens_kv: str | None = flag(
        "each KV sequence's tokens, as 17,33,4x120", default=None, letter="lens", draw=(None,)
    )
    return_lse: bool = flag("also return the log-sum-exp", default=False, letter="lse")
    enable_pdl: bool = flag("programmatic dependent launch", default=False, letter="pdl")

    @property
    def out(self) -> str:
        return self.out_dtype or self.q_dtype

    @property
    def types(self) -> tuple[str, str, str]:
        return self.q_dtype, self.kv_dtype, self.out

    @property
    def half(self) -> str:
        """The 16-bit type among those of queries and keys, or bfloat16."""
        return next((dtype for dtype in (self.q_dtype, self.kv_dtype) if dtype in HALF), HALF[0])

    @property
    def matmul_dtype(self) -> str:
        """The type whose peak is the roof of the kernel: fp8 only if both operands are fp8."""
        return self.q_dtype if is_fp8(self.q_dtype) and is_fp8(self.kv_dtype) else self.half

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        return {**drawn, "s_qo": min(drawn["s_qo"], drawn["s_kv"])}

    def faults(self) -> Iterator[Fault]:
        if self.s_qo > self.s_kv:
            yield "s_qo", f"{self.s_qo} is more than s_kv {self.s_kv}: the queries are the end of the KV sequence"
        yield from self.length_faults("actual_seq_lens_kv", "s_kv")

    def length_faults(self, name: str, longest: str) -> Iterator[Fault]:
        text, most = getattr(self, name), getattr(self, longest)
        faults = list(list_faults(name, text, ("batch_size", self.batch_size)))
        yield from faults
        if text and not faults and max(listed(text)) != most:
            yield name, f"the longest has {max(listed(text))} tokens, and {longest} is {most}"


@dataclass(frozen=True)
class GroupedQueries(AttentionParams):
    """Grouped-query attention: each KV head serves a group of query heads."""

    num_kv_heads: int = flag("key and value heads", letter="kv", minimum=1, draw=(1, 2, 4))
    head_dim_qk: int = flag("head size of queries and keys", letter="d", minimum=1, draw=(64, 128))
    head_dim_vo: int | None = flag("head size of values", default=None, letter="dv", same_as="head_dim_qk", minimum=1)

    @property
    def head_dim_out(self) -> int:
        return self.head_dim_qk if self.head_dim_vo is None else self.head_dim_vo

    @property
    def data_types(self) -> dict[str, torch.dtype]:
        """The keywords in the spelling of the wrappers' `plan`."""
        return {
            "q_data_type": TORCH[self.q_dtype],
            "kv_data_type": TORCH[self.kv_dtype],
            "o_data_type": TORCH[self.out],
        }

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.head_dim_qk)

    @property
    def group(self) -> int:
        return self.num_qo_heads // self.num_kv_heads

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        """Query heads are drawn for each KV head."""
        return {**super().fitted(drawn), "num_qo_heads": drawn["num_qo_heads"] * drawn["num_kv_heads"]}

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        yield from whole_groups(self.num_qo_heads, self.num_kv_heads)


@dataclass(frozen=True)
class PrefillParams(GroupedQueries):
    s_qo: int = flag(
        "longest query", default=1, letter="q", minimum=1, draw=(1, 3, 16, 33), most=1024, tiles=(16, 64, 128)
    )
    empty_first: bool = flag("the first request has no tokens", default=False, letter="empty")
    actual_seq_lens_q: str | None = flag(
        "each query's tokens, as 17,33,4x120", default=None, letter="qlens", draw=(None,)
    )

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        yield from self.length_faults("actual_seq_lens_q", "s_qo")
        if self.empty_first and self.batch_size == 1:
            yield "empty_first", "needs a batch_size of at least 2, or nothing would be left to compute"

    @property
    def quantised(self) -> bool:
        return is_fp8(self.q_dtype) or is_fp8(self.kv_dtype)


def whole_groups(num_qo_heads: int, num_kv_heads: int) -> Iterator[Fault]:
    if num_qo_heads % num_kv_heads:
        yield "num_qo_heads", f"{num_qo_heads} is not a multiple of num_kv_heads {num_kv_heads}"


# Actual lengths of requests, with their offsets and the number of query-key pairs.


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


def draw(batch: int, longest: int, random: bool, rand: torch.Generator, lengths: str | None = None) -> Tensor:
    """The lengths that a list has; else random ones up to `longest`, or all of them `longest`."""
    if lengths is not None:
        return torch.tensor(listed(lengths), dtype=torch.int32, device=rand.device)
    if not random:
        return torch.full((batch,), longest, dtype=torch.int32, device=rand.device)
    return torch.randint(1, longest + 1, (batch,), dtype=torch.int32, device=rand.device, generator=rand)


def decode(p: AttentionParams, rand: torch.Generator) -> Tensor:
    """The lengths of the keys, the first numbers of the generator; at least as many as there are queries."""
    return draw(p.batch_size, p.s_kv, p.random_actual_seq_len, rand, p.actual_seq_lens_kv).clamp_min(p.s_qo)


def prefill(p: PrefillParams, rand: torch.Generator) -> Lengths:
    """The queries: the whole prompt if it is as long as its keys, else the end of a longer sequence."""
    on_cpu = torch.Generator().manual_seed(rand.initial_seed())
    random, kv_lengths = p.random_actual_seq_len, p.actual_seq_lens_kv
    q = draw(p.batch_size, p.s_qo, random, on_cpu, p.actual_seq_lens_q)
    same = p.s_qo == p.s_kv and kv_lengths is None
    kv = q if same else draw(p.batch_size, p.s_kv, random, on_cpu, kv_lengths).maximum(q)
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
    drawn_as = torch.bfloat16 if is_fp8(dtype) else TORCH[dtype]
    return torch.randn(shape, dtype=drawn_as, device=rand.device, generator=rand)


def normal(shape: tuple[int, ...], dtype: str, rand: torch.Generator) -> _narrow.PerTensor:
    """The stored values, and the scale that restores the drawn ones."""
    drawn = unquantised(shape, dtype, rand)
    return _narrow.per_tensor(drawn, TORCH[dtype]) if is_fp8(dtype) else _narrow.PerTensor(drawn, 1.0)
