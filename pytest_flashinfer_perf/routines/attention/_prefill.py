"""Shared by paged and ragged prefill: flags, and code that differs only in where the keys are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines._offsets import edges
from pytest_flashinfer_perf.routines.attention import _lengths, _reference, _shared
from pytest_flashinfer_perf.routines.attention._params import PrefillParams
from pytest_flashinfer_perf.routines.attention._problems import PagedInputs, RaggedInputs
from pytest_flashinfer_perf.routines.attention._reference import Request
from pytest_flashinfer_perf.spec.dtypes import TORCH
from pytest_flashinfer_perf.spec.presets import Model
from pytest_flashinfer_perf.spec.routine import Built, Cost, LaunchOptions, Reference, Routine

# The smallest tier: every type and every path of the code, on shapes that a laptop does in milliseconds.
SMOKE_CHANGES: tuple[dict[str, Any], ...] = (
    {"causal": True},
    {"causal": True, "s_qo": 70},
    {},
    {"causal": True, "q_dtype": "float16", "kv_dtype": "float16"},
    {"causal": True, "kv_dtype": "fp8_e4m3"},
    {"causal": True, "q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "bfloat16"},
    {"causal": True, "random_actual_seq_len": True},
    {"causal": True, "return_lse": True},
    {"causal": True, "num_qo_heads": 10},
)


P = TypeVar("P", bound=PrefillParams)
Prefill = PagedInputs | RaggedInputs
X = TypeVar("X", PagedInputs, RaggedInputs)
Reader = Callable[[X, int, slice], tuple[Tensor, Tensor]]  # of the nth request: its keys and values, heads first


def routine(  # noqa: PLR0913, PLR0917 - the functions in which paged and ragged differ
    name: str,
    params: type[P],
    inputs: Callable[[P, torch.Generator, torch.device], X],
    reference: Reference[P, X],
    cost: Callable[[P, X], Cost],
    footprint: Callable[[P], int],
) -> Routine[P, X]:
    return Routine(
        name,
        family="attention",
        params=params,
        inputs=inputs,
        outputs=lambda x: _shared.written(x.out, x.lse),
        reference=reference,
        cost=cost,
        tolerances=lambda p, backend: _shared.tolerances(p, sums_in_half=backend == "trtllm-fmha-v2"),
        footprint=footprint,
        cuda_graph=True,
        facts=lambda p, x: _lengths.facts(p, x.lens.q, x.lens.kv),
        rows=lambda _p, x: edges(x.lens.q_indptr),
        activations=lambda x: x.q,
        aliases=_shared.ALIASES,
    )


def qk_scale(p: PrefillParams, x: Prefill) -> float:
    return x.q_scale * x.k_scale * p.scale


def reference(p: PrefillParams, x: X, read: Reader[X], rows: Tensor | None = None) -> tuple[Tensor, ...]:
    requests = (Request(span, partial(read, x, i, keys)) for i, (span, keys) in enumerate(x.lens.spans))
    answers = _reference.answers(x.q, requests, scale=qk_scale(p, x), causal=p.causal, rows=rows)
    return _reference.joined(answers, x.v_scale, lse=p.return_lse)


def cost(p: PrefillParams, x: Prefill, *read: Tensor | int) -> Cost:
    """The cost of reading queries, writing outputs, and reading `read`: tensors, or numbers of bytes."""
    pairs = _lengths.pairs(x.lens.q, x.lens.kv, causal=p.causal)
    moved = (x.q, *_shared.written(x.out, x.lse), x.lens.q_indptr, *read)
    return Cost(
        flops=2 * pairs * p.num_qo_heads * (p.head_dim_qk + p.head_dim_out),
        bytes=sum(t if isinstance(t, int) else t.nbytes for t in moved),
        dtype=p.matmul_dtype,
    )


def plans_for_graphs(options: LaunchOptions) -> bool:
    """As upstream: fa2's plan for graphs reserves gigabytes for every split of any batch. The batch that is captured
    here never changes, so that a plan for this batch alone is correct in a graph, too.
    """
    return options.cuda_graph and options.backend != "fa2"


def cudnn_scales(p: PrefillParams, x: Prefill) -> dict[str, Tensor]:
    named = {"q_scale": x.q_scale, "k_scale": x.k_scale, "v_scale": x.v_scale} if p.quantised else {}
    return {name: torch.full((1, 1, 1, 1), scale, device=x.q.device) for name, scale in named.items()}


def cudnn_plan(p: PrefillParams, x: Prefill) -> dict[str, Any]:
    """Keywords of the wrappers' `plan` that only cuDNN needs."""
    lengths = {"seq_lens": x.lens.kv, "seq_lens_q": x.lens.q, "sm_scale": p.scale}
    return {**lengths, "max_token_per_sequence": p.s_qo, "max_sequence_kv": p.s_kv}


def build_cudnn_native(
    p: PrefillParams, x: X, options: LaunchOptions, where: Callable[[X], dict[str, Tensor]]
) -> Built[X]:
    """`where` returns the keywords that pass keys and values."""
    from flashinfer.prefill import cudnn_batch_prefill_with_kv_cache

    workspace = _shared.workspace(x.q.device)
    offsets = {
        "batch_offsets_q": _shared.element_offsets(x.lens.q_indptr, p.num_qo_heads, p.head_dim_qk),
        "batch_offsets_o": _shared.element_offsets(x.lens.q_indptr, p.num_qo_heads, p.head_dim_out),
    }
    if p.return_lse:
        offsets["batch_offsets_stats"] = _shared.element_offsets(x.lens.q_indptr, p.num_qo_heads, 1)
    scales = cudnn_scales(p, x)

    def launch(x: X) -> object:
        return cudnn_batch_prefill_with_kv_cache(
            x.q,
            x.k,
            x.v,
            p.scale,
            workspace,
            max_token_per_sequence=p.s_qo,
            max_sequence_kv=p.s_kv,
            actual_seq_lens_q=x.lens.q.view(-1, 1, 1, 1),
            actual_seq_lens_kv=x.lens.kv.view(-1, 1, 1, 1),
            causal=p.causal,
            o_data_type=TORCH[p.out],
            is_cuda_graph_compatible=options.cuda_graph,
            out=x.out,
            **{"return_lse": False, **_shared.returning(x.lse), **offsets, **scales, **where(x)},
        )

    return Built(launch, "cudnn")


def build_fmha_v2(
    p: PrefillParams, x: X, layout: str, qkv: Callable[[X], object], where: Callable[[X], dict[str, Tensor]]
) -> Built[X]:
    from flashinfer.prefill import trtllm_fmha_v2_prefill

    workspace = _shared.workspace(x.q.device)

    def launch(x: X) -> object:
        return trtllm_fmha_v2_prefill(
            qkv(x),
            layout,
            workspace,
            seq_lens=x.lens.kv,
            max_q_len=p.s_qo,
            max_kv_len=p.s_kv,
            bmm1_scale=qk_scale(p, x),
            bmm2_scale=x.v_scale,
            batch_size=p.batch_size,
            cum_seq_lens_q=x.lens.q_indptr,
            cum_seq_lens_kv=x.lens.kv_indptr,
            mask_mode="causal" if p.causal else "padding",
            out=x.out,
            out_dtype=TORCH[p.out],
            **where(x),
        )

    return Built(launch, "trtllm-fmha-v2", x)


def build_torch(p: PrefillParams, x: X, read: Reader[X]) -> Built[X]:
    spans, half = x.lens.spans, TORCH[p.half]  # on the host before anything is captured

    def launch(x: X) -> object:
        for i, (rows, keys) in enumerate(spans):
            k, v = (side.to(half) for side in read(x, i, keys))
            x.out[rows] = _sdpa(x.q[rows].to(half), k, v, scale=qk_scale(p, x), causal=p.causal) * x.v_scale
        return x.out

    return Built(launch, "sdpa")


def _sdpa(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> Tensor:
    """One request's rows [rows, heads, dim] over [KV heads, tokens, dim], by scaled_dot_product_attention."""
    mask = _causal(q.shape[0], k.shape[1], q.device) if causal else {}
    grouped = q.shape[1] != k.shape[0]
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k[None], v[None], scale=scale, enable_gqa=grouped, **mask
    )
    return out[0].transpose(0, 1)


def _causal(rows: int, keys: int, device: torch.device) -> dict[str, Any]:
    """The last row sees the last key. torch's own class knows GPU kernels for it, and takes seconds to import."""
    if rows == keys:
        return {"is_causal": True}
    if device.type == "cpu":
        return {"attn_mask": torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)}
    from torch.nn.attention.bias import causal_lower_right

    return {"attn_mask": causal_lower_right(rows, keys)}


def lengths_of_models(model: Model) -> Iterator[tuple[int, int, int]]:
    """Batch, s_qo and s_kv: whole prompts, and the next chunk of longer ones."""
    for batch in model.batches(1, 4, 16, 64):
        yield from ((batch, length, length) for length in (512, 1024, 2048, 4096, 8192))
        yield from ((batch, 512, s_kv) for s_kv in (4096, 16384, 65536))
