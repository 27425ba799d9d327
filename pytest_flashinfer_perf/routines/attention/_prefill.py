"""Shared by paged and ragged prefill: code that differs only in where the keys are stored, and limits of backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines._offsets import edges
from pytest_flashinfer_perf.routines.attention import _reference, _requests, _shared
from pytest_flashinfer_perf.routines.attention._problems import PagedInputs, PagedPrefill, RaggedInputs, RaggedPrefill
from pytest_flashinfer_perf.routines.attention._reference import Request
from pytest_flashinfer_perf.routines.attention._requests import GroupedQueries, PrefillParams
from pytest_flashinfer_perf.spec.dtypes import FP8, TORCH, is_fp8
from pytest_flashinfer_perf.spec.presets import Model
from pytest_flashinfer_perf.spec.routine import Built, Cost, LaunchOptions, Reference, Routine

PAGED = "BatchPrefillWithPagedKVCacheWrapper"
RAGGED = "BatchPrefillWithRaggedKVCacheWrapper"
CUDNN = "prefill.cudnn_batch_prefill_with_kv_cache"
CONTEXT = "prefill.trtllm_batch_context_with_kv_cache"
DEEPSEEK = "prefill.trtllm_ragged_attention_deepseek"
FMHA_V2 = "prefill.trtllm_fmha_v2_prefill"
PAGED_PRIMS = "attention.prims_ts.BatchPrefillPagedTSWrapper"
RAGGED_PRIMS = "attention.prims_ts.BatchPrefillTSWrapper"

FA3_HEADS = ((64, 64), (128, 128), (256, 256), (192, 128))
CUDNN_FP8 = 91701
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
        facts=lambda p, x: _requests.facts(p, x.lens.q, x.lens.kv),
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
    pairs = _requests.pairs(x.lens.q, x.lens.kv, causal=p.causal)
    moved = (x.q, *_shared.written(x.out, x.lse), x.lens.q_indptr, *read)
    return Cost(
        flops=2 * pairs * p.num_qo_heads * (p.head_dim_qk + p.head_dim_out),
        bytes=sum(t if isinstance(t, int) else t.nbytes for t in moved),
        dtype=p.matmul_dtype,
    )


def plans_for_graphs(options: LaunchOptions) -> bool:
    """Whether to plan for graphs, as upstream does, but for fa2, whose plan for graphs reserves gigabytes.

    The batch that is captured here never changes, so that a plan for this batch alone is correct in a graph, too.
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
    rows, keys, mask = q.shape[0], k.shape[1], None
    if causal and rows != keys and q.device.type == "cpu":  # the last row sees the last key
        mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)
    elif causal and rows != keys:  # torch's own class knows GPU kernels for it, and takes seconds to import
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(rows, keys)
    grouped = q.shape[1] != k.shape[0]
    keywords: dict[str, Any] = {"attn_mask": mask, "is_causal": causal and mask is None, "scale": scale}
    out = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k[None], v[None], enable_gqa=grouped, **keywords
    )
    return out[0].transpose(0, 1)


def lengths_of_models(model: Model) -> Iterator[tuple[int, int, int]]:
    """Batch, s_qo and s_kv: whole prompts, and the next chunk of longer ones."""
    for batch in model.batches(1, 4, 16, 64):
        yield from ((batch, length, length) for length in (512, 1024, 2048, 4096, 8192))
        yield from ((batch, 512, s_kv) for s_kv in (4096, 16384, 65536))


# Limits of the library's prefill backends that no decorator declares: a message each, with a way out.


def paged_wrapper_limits(p: PagedPrefill, backend: str, device: Device) -> Iterator[str]:
    if backend == "trtllm-gen":
        yield from _blackwell_context(p, backend, device)
    else:
        yield from _flash(p, backend)


def ragged_wrapper_limits(p: RaggedPrefill, backend: str, _device: Device) -> Iterator[str]:
    only_keys_fp8, wrapper = is_fp8(p.kv_dtype) and not is_fp8(p.q_dtype), capability.api(RAGGED)
    if only_keys_fp8 and wrapper is not None and not capability.accepts(wrapper.run, "lse_base"):
        yield f"{backend} ignores the scales of fp8 keys in this flashinfer: use fp8 queries too, or flashinfer 0.7.2"
    if backend == "cutlass":
        if is_fp8(p.q_dtype) or is_fp8(p.kv_dtype) or is_fp8(p.out):
            yield "cutlass prefills bfloat16 and float16 only: use trtllm-native"
        if p.head_dim_qk != 192 and (p.head_dim_qk, p.head_dim_out) != (128, 128):
            yield f"cutlass has heads of 128 or 192, not {p.head_dim_qk}/{p.head_dim_out}: use fa2"
    else:
        yield from _flash(p, backend)


def _flash(p: GroupedQueries, backend: str) -> Iterator[str]:
    """fa2, fa3, and auto, which chooses between them."""
    if backend == "fa2" and is_fp8(p.q_dtype):
        yield f"fa2 needs bfloat16 or float16 queries, q_dtype is {p.q_dtype}: use fa3"
    if backend == "fa3" and is_fp8(p.q_dtype) != is_fp8(p.kv_dtype):
        yield "fa3 needs queries and KV cache both in fp8, or neither: use fa2"
    if backend in ("fa3", "auto") and is_fp8(p.q_dtype) and p.head_dim_qk != p.head_dim_out:
        yield f"fa3 has no fp8 kernel for heads of {p.head_dim_qk}/{p.head_dim_out}: use bfloat16"
    if backend == "fa3" and (p.head_dim_qk, p.head_dim_out) not in FA3_HEADS:
        yield f"fa3 has no kernel for heads of {p.head_dim_qk}/{p.head_dim_out}: use fa2"
    if is_fp8(p.out):
        yield f"{backend} has no fp8 output: set out_dtype to bfloat16"


def _blackwell_context(p: GroupedQueries, backend: str, device: Device) -> Iterator[str]:
    yield from _blackwell(backend, device)
    yield from _shared.e4m3_alone(p, backend)
    if not p.causal:
        yield f"{backend} prefills causally only: set causal"


def _blackwell(backend: str, device: Device) -> Iterator[str]:
    if device.capability is not None and device.capability[0] != 10:
        yield f"{backend} prefills on compute capability 10.x only: use trtllm-fmha-v2"


def cudnn_limits(p: GroupedQueries, backend: str, device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, backend)
    if is_fp8(p.q_dtype) or is_fp8(p.kv_dtype):
        version = torch.backends.cudnn.version() or 0
        if device.capability is not None and device.capability < (10, 0):
            yield f"{backend} prefills fp8 on compute capability 10.0 or later: use fa3"
        elif version < CUDNN_FP8:
            yield f"{backend} prefills fp8 with cuDNN 9.17.1 or later, this is {version}: use trtllm-native"
    if p.q_dtype != p.kv_dtype:
        yield f"{backend} needs queries and keys of one type, not {p.q_dtype} and {p.kv_dtype}: use fa2"
    if p.return_lse and not capability.accepts(capability.api(CUDNN), "lse_base"):
        yield f"{backend} returns another LSE in this flashinfer: use fa2, or flashinfer 0.7.2"


def context_limits(p: PagedPrefill, backend: str, device: Device) -> Iterator[str]:
    yield from _blackwell_context(p, backend, device)
    if p.return_lse and not capability.accepts(capability.api(CONTEXT), "return_lse"):
        yield from _shared.no_lse(p, f"{backend} of this flashinfer")


def deepseek_limits(p: RaggedPrefill, backend: str, device: Device) -> Iterator[str]:
    yield from _blackwell(backend, device)
    yield from _shared.e4m3_alone(p, backend)
    if (p.head_dim_qk, p.head_dim_out) not in ((192, 128), (128, 128), (256, 256)):
        yield f"{backend} has heads of 192/128, 128/128 or 256/256, not {p.head_dim_qk}/{p.head_dim_out}: use fa2"
    if is_fp8(p.out):
        yield f"{backend} has no fp8 output: set out_dtype to bfloat16"


def fmha_v2_limits(p: GroupedQueries, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, backend)
    yield from _shared.no_lse(p, backend)
    if p.q_dtype != p.kv_dtype:
        yield f"{backend} needs queries and keys of one type, not {p.q_dtype} and {p.kv_dtype}: use fa2"
    elif p.q_dtype not in FP8 and p.out != p.q_dtype:
        yield f"{backend} writes the type of its inputs: leave out out_dtype"


def reads_separately(device: Device) -> bool:
    """Whether fmha-v2 has kernels for keys and values in two tensors."""
    return device.capability is None or device.capability[0] != 12


def ragged_fmha_v2_limits(p: RaggedPrefill, backend: str, device: Device) -> Iterator[str]:
    yield from fmha_v2_limits(p, backend, device)
    if p.head_dim_qk != p.head_dim_out:
        yield f"{backend} has no kernel for keys of {p.head_dim_qk} and values of {p.head_dim_out}: use fa3"
    if p.s_qo != p.s_kv:  # its TMA map of keys and values is as long as the queries: the rest reads as zeros
        yield f"{backend} is wrong where there are more keys than queries: set s_qo to s_kv, or use fa3"


def prims_ts_limits(p: GroupedQueries, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, backend)
    yield from _shared.no_lse(p, backend)
    if p.q_dtype != p.kv_dtype:
        yield f"{backend} needs queries and keys of one type: use fa2"
    if p.head_dim_qk != p.head_dim_out or p.head_dim_qk not in (128, 256):
        yield f"{backend} has heads of 128 or 256, not {p.head_dim_qk}/{p.head_dim_out}: use fa2"


def paged_prims_ts_limits(p: PagedPrefill, backend: str, device: Device) -> Iterator[str]:
    yield from prims_ts_limits(p, backend, device)
    if p.page_size not in _shared.PAGES:
        yield f"{backend} has pages of {_shared.PAGES_LISTED} tokens, not {p.page_size}: use fa2"
