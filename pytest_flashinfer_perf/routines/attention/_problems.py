"""The four problems that attention backends share: their parameters, and the tensors of each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from torch import Tensor

from pytest_flashinfer_perf.routines.attention import _requests, _shared
from pytest_flashinfer_perf.routines.attention._requests import (
    AttentionParams,
    GroupedQueries,
    PrefillParams,
)
from pytest_flashinfer_perf.spec.dtypes import HALF, is_fp8
from pytest_flashinfer_perf.spec.params import Fault, Field, Value, autotune, flag

QK_NOPE = 128  # of the queries before they are absorbed: what the softmax is scaled by


@dataclass(frozen=True)
class Paged(GroupedQueries):
    """Against a paged KV cache, where keys and values share a page."""

    page_size: int = flag("tokens per KV page", default=0, letter="p", usual=16, minimum=1, draw=(1, 2, 7, 16, 64))

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.head_dim_out != self.head_dim_qk:
            yield "head_dim_vo", f"{self.head_dim_vo} differs from head_dim_qk {self.head_dim_qk}: a KV page holds both"

    def footprint(self) -> int:
        """The cache; queries, outputs and their reference; the workspace."""
        token, rows = 2 * self.num_kv_heads * self.head_dim_qk, self.batch_size * self.s_qo * self.num_qo_heads
        cache = _shared.cache_bytes(self.batch_size, self.s_kv, self.page_size, token, self.kv_dtype)
        return cache + _shared.rows_bytes(rows, self.head_dim_qk, self.head_dim_qk)


@dataclass(frozen=True)
class BatchDecode(Paged):
    """One query token per request, or a few draft ones, against a paged KV cache."""

    spec_dec_mask: str = flag(
        "the draft tokens that a draft token attends to", default="causal", choices=("causal", "full")
    )

    @property
    def masked(self) -> bool:
        return self.s_qo > 1 and (self.causal or self.spec_dec_mask == "causal")


class DecodeInputs(NamedTuple):
    q: Tensor  # [batch * s_qo, qo heads, dim]
    kv: _shared.KVCache
    table: _shared.PageTable
    seq_lens: Tensor
    mask: Tensor | None
    out: Tensor
    lse: Tensor | None


@dataclass(frozen=True)
class BatchMLA(AttentionParams):
    """One query token per request, or a few causal ones, against a paged cache of latents that every head shares.

    It is always causal, and `num_kv_heads` has no effect; upstream accepts both flags, too.
    """

    ignores: ClassVar[tuple[str, ...]] = ("num_kv_heads",)

    page_size: int = flag("tokens per KV page", default=0, letter="p", usual=32, minimum=1, draw=(1, 7, 16, 32, 64))
    head_dim_ckv: int = flag("size of the latents", letter="d", usual=512, minimum=1, draw=(128, 512))
    head_dim_kpe: int = flag("size of the rotary part", letter="pe", usual=64, minimum=0, draw=(64,))
    mla_is_var_seq: str | None = flag(
        "native API: schedule for varying lengths", default=None, letter="var", choices=("true", "false", "auto")
    )
    mla_cute_dsl_impl: str | None = flag(
        "cute-dsl: the implementation to use", default=None, letter="impl", choices=("auto", "modular", "monolithic")
    )
    autotune: bool = autotune()

    @property
    def out(self) -> str:
        return self.out_dtype or (HALF[0] if is_fp8(self.q_dtype) else self.q_dtype)

    def implied(self, field: Field) -> Value:
        return self.out if field.name == "out_dtype" else super().implied(field)

    @property
    def masked(self) -> bool:
        return self.s_qo > 1

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(QK_NOPE + self.head_dim_kpe)

    @property
    def head_dim(self) -> int:
        return self.head_dim_ckv + self.head_dim_kpe


class LatentInputs(NamedTuple):
    q: Tensor  # [batch * s_qo, heads, ckv + kpe]
    kv: Tensor  # [pages, page, ckv + kpe]
    q_scale: float
    kv_scale: float
    table: _shared.PageTable
    seq_lens: Tensor
    q_indptr: Tensor
    out: Tensor
    lse: Tensor | None

    @property
    def scale(self) -> float:
        return self.q_scale * self.kv_scale


@dataclass(frozen=True)
class PagedPrefill(Paged, PrefillParams):
    """Whole prompts, or the new end of longer sequences, against a paged KV cache."""


class PagedInputs(NamedTuple):
    q: Tensor  # [tokens, qo heads, dim]
    q_scale: float
    kv: _shared.KVCache
    table: _shared.PageTable
    lens: _requests.Lengths
    out: Tensor
    lse: Tensor | None

    @property
    def k(self) -> Tensor:
        return self.kv.k

    @property
    def v(self) -> Tensor:
        return self.kv.v

    @property
    def k_scale(self) -> float:
        return self.kv.k_scale

    @property
    def v_scale(self) -> float:
        return self.kv.v_scale


@dataclass(frozen=True)
class RaggedPrefill(PrefillParams):
    """Whole prompts, or the new end of longer sequences, against keys and values that lie one after the other."""

    head_dim_vo: int | None = flag(
        "head size of values", default=None, letter="dv", same_as="head_dim_qk", minimum=1, draw=(64, 128)
    )


class RaggedInputs(NamedTuple):
    q: Tensor  # [tokens, qo heads, qk dim]
    k: Tensor  # [tokens, KV heads, qk dim]
    v: Tensor  # [tokens, KV heads, vo dim]
    q_scale: float
    k_scale: float
    v_scale: float
    lens: _requests.Lengths
    out: Tensor
    lse: Tensor | None
    kv: Tensor | None = None  # keys and values in one, for a backend that takes them so
