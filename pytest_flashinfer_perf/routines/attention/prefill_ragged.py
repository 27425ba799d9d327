"""BatchPrefillWithRaggedKVCacheWrapper and the native prefill APIs that compute the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine import capability, devices
from pytest_flashinfer_perf.routines import layers
from pytest_flashinfer_perf.routines.attention import _prefill, _prims, _requests, _shared
from pytest_flashinfer_perf.routines.attention._prefill import CUDNN, DEEPSEEK, FMHA_V2, RAGGED, RAGGED_PRIMS
from pytest_flashinfer_perf.routines.attention._problems import RaggedInputs, RaggedPrefill
from pytest_flashinfer_perf.spec import Built, Cost, LaunchOptions, Model, Shape
from pytest_flashinfer_perf.spec.dtypes import TORCH, bytes_of, is_fp8


def inputs(p: RaggedPrefill, rand: torch.Generator, device: torch.device) -> RaggedInputs:
    lens = _requests.prefill(p, rand)
    rows, tokens = int(lens.q.sum()), int(lens.kv.sum())
    q, k, v = (
        _requests.normal(shape, dtype, rand)
        for shape, dtype in (
            ((rows, p.num_qo_heads, p.head_dim_qk), p.q_dtype),
            ((tokens, p.num_kv_heads, p.head_dim_qk), p.kv_dtype),
            ((tokens, p.num_kv_heads, p.head_dim_out), p.kv_dtype),
        )
    )
    return RaggedInputs(
        q=q.values,
        k=k.values,
        v=v.values,
        q_scale=q.scale,
        k_scale=k.scale,
        v_scale=v.scale,
        lens=lens,
        out=torch.empty(rows, p.num_qo_heads, p.head_dim_out, dtype=TORCH[p.out], device=device),
        lse=_shared.empty_lse(p, q.values),
    )


def _read(x: RaggedInputs, _i: int, keys: slice) -> tuple[Tensor, Tensor]:
    return x.k[keys].transpose(0, 1), x.v[keys].transpose(0, 1)


def reference(p: RaggedPrefill, x: RaggedInputs, rows: Tensor | None = None) -> tuple[Tensor, ...]:
    return _prefill.reference(p, x, _read, rows)


def cost(p: RaggedPrefill, x: RaggedInputs) -> Cost:
    """Keys and values once each, and the offsets."""
    return _prefill.cost(p, x, x.k, x.v, x.lens.kv_indptr)


def footprint(p: RaggedPrefill) -> int:
    """Keys and values, twice while they are quantised; the queries' side; the workspace."""
    size = 4 if is_fp8(p.kv_dtype) else bytes_of(p.kv_dtype)
    kv = p.batch_size * p.s_kv * p.num_kv_heads * (p.head_dim_qk + p.head_dim_out) * size
    return kv + _shared.rows_bytes(p.batch_size * p.s_qo * p.num_qo_heads, p.head_dim_qk, p.head_dim_out)


ragged_prefill = _prefill.routine(RAGGED, RaggedPrefill, inputs, reference, cost, footprint)


@ragged_prefill.backend("fa2", "fa3", "cutlass", api=RAGGED, limits=_prefill.ragged_wrapper_limits)
def _wrapper(p: RaggedPrefill, x: RaggedInputs, options: LaunchOptions) -> Built[RaggedInputs]:
    wrapper, plan = _planned(p, x, options, x.lens.q_indptr, x.lens.kv_indptr)
    all_fp8, some_fp8 = is_fp8(p.q_dtype), is_fp8(p.kv_dtype)
    heads = ((p.num_qo_heads, x.q_scale), (p.num_kv_heads, x.k_scale), (p.num_kv_heads, x.v_scale))
    per_head = [torch.full((count,), scale, device=x.q.device) for count, scale in heads]
    in_kernel = per_head if all_fp8 else []  # as fa3's fp8 kernels need scales
    beside = {"k_scale": x.k_scale, "v_scale": x.v_scale} if some_fp8 and not all_fp8 else {}

    def launch(x: RaggedInputs) -> object:
        keywords = {"out": x.out, "enable_pdl": p.enable_pdl, **beside, **_shared.returning(x.lse)}
        return wrapper.run(x.q, x.k, x.v, *in_kernel, **keywords)

    return Built(launch, _shared.resolved(wrapper), plan=plan)


def _planned(
    p: RaggedPrefill, x: RaggedInputs, options: LaunchOptions, q_indptr: Tensor, kv_indptr: Tensor, **more: Any
) -> tuple[Any, Callable[[], object]]:
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    q_indptr, kv_indptr = q_indptr.clone(), kv_indptr.clone()
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(
        _shared.workspace(x.q.device),
        "NHD",
        use_cuda_graph=_prefill.plans_for_graphs(options),
        qo_indptr_buf=q_indptr,
        kv_indptr_buf=kv_indptr,
        backend=options.backend,
    )
    heads = (p.num_qo_heads, p.num_kv_heads, p.head_dim_qk)
    keywords = {"head_dim_vo": p.head_dim_out, "causal": p.causal, **p.data_types, **more}
    return wrapper, _shared.planned(wrapper, q_indptr, kv_indptr, *heads, **keywords)


@ragged_prefill.backend("cudnn", api=RAGGED, limits=_prefill.cudnn_limits)
def _cudnn(p: RaggedPrefill, x: RaggedInputs, options: LaunchOptions) -> Built[RaggedInputs]:
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    keywords = _prefill.cudnn_plan(p, x)
    if capability.accepts(BatchPrefillWithRaggedKVCacheWrapper.plan, "uniform_q_len"):
        wrapper, plan = _planned(p, x, options, x.lens.q_indptr, x.lens.kv_indptr, **keywords)
    else:  # until 0.7.2 in elements
        q, o = (_shared.element_offsets(x.lens.q_indptr, p.num_qo_heads, d) for d in (p.head_dim_qk, p.head_dim_out))
        k, v = _key_offsets(p, x)
        wrapper, plan = _planned(p, x, options, q, k, v_indptr=v, o_indptr=o, **keywords)
    scales = _prefill.cudnn_scales(p, x)

    def launch(x: RaggedInputs) -> object:
        return wrapper.run(x.q, x.k, x.v, out=x.out, enable_pdl=p.enable_pdl, **scales, **_shared.returning(x.lse))

    return Built(launch, "cudnn", plan=plan)


def _key_offsets(p: RaggedPrefill, x: RaggedInputs) -> tuple[Tensor, Tensor]:
    of = _shared.element_offsets
    return of(x.lens.kv_indptr, p.num_kv_heads, p.head_dim_qk), of(x.lens.kv_indptr, p.num_kv_heads, p.head_dim_out)


@ragged_prefill.backend("cudnn-native", api=CUDNN, limits=_prefill.cudnn_limits)
def _cudnn_native(p: RaggedPrefill, x: RaggedInputs, options: LaunchOptions) -> Built[RaggedInputs]:
    k, v = _key_offsets(p, x)
    return _prefill.build_cudnn_native(p, x, options, lambda _x: {"batch_offsets_k": k, "batch_offsets_v": v})


@ragged_prefill.backend("trtllm-native", "cute-dsl", api=DEEPSEEK, limits=_prefill.deepseek_limits)
def _deepseek(p: RaggedPrefill, x: RaggedInputs, options: LaunchOptions) -> Built[RaggedInputs]:
    from flashinfer.prefill import trtllm_ragged_attention_deepseek

    workspace = _shared.workspace(x.q.device)
    kernels = "cute-dsl" if options.backend == "cute-dsl" else "trtllm-gen"

    def launch(x: RaggedInputs) -> object:
        return trtllm_ragged_attention_deepseek(
            query=x.q,
            key=x.k,
            value=x.v,
            workspace_buffer=workspace,
            seq_lens=x.lens.kv,
            max_q_len=p.s_qo,
            max_kv_len=p.s_kv,
            bmm1_scale=_prefill.qk_scale(p, x),
            bmm2_scale=x.v_scale,
            o_sf_scale=-1,
            batch_size=p.batch_size,
            window_left=-1,
            cum_seq_lens_q=x.lens.q_indptr,
            cum_seq_lens_kv=x.lens.kv_indptr,
            enable_pdl=p.enable_pdl,
            is_causal=p.causal,
            out=x.out,
            backend=kernels,
            **{"return_lse": False, **_shared.returning(x.lse)},
        )

    return Built(launch, kernels)


@ragged_prefill.backend("trtllm-fmha-v2", api=FMHA_V2, limits=_prefill.ragged_fmha_v2_limits)
def _fmha_v2(p: RaggedPrefill, x: RaggedInputs, _options: LaunchOptions) -> Built[RaggedInputs]:
    if is_fp8(p.q_dtype) or not _prefill.reads_separately(devices.device_of(x.q)):
        kv = torch.stack([x.k, x.v], dim=1)  # [tokens, 2, heads, dim]
        joined = x._replace(kv=kv, k=kv[:, 0], v=kv[:, 1])
        return _prefill.build_fmha_v2(p, joined, "CONTIGUOUS_Q_KV", lambda x: (x.q, x.kv), lambda _x: {})
    return _prefill.build_fmha_v2(p, x, "SEPARATE_Q_K_V", lambda x: (x.q, x.k, x.v), lambda _x: {})


ragged_prefill.backend("prims-ts", api=RAGGED_PRIMS, limits=_prefill.prims_ts_limits)(_prims.build_ragged)


@ragged_prefill.backend("torch", limits=_shared.no_lse)
def _torch(p: RaggedPrefill, x: RaggedInputs, _options: LaunchOptions) -> Built[RaggedInputs]:
    return _prefill.build_torch(p, x, _read)


SMOKE = RaggedPrefill(batch_size=3, s_qo=40, s_kv=70, num_qo_heads=8, num_kv_heads=2, head_dim_qk=64)


@ragged_prefill.tier("smoke")
def _smoke() -> Iterator[Shape[RaggedPrefill]]:
    yield from (
        Shape(replace(SMOKE, **change))
        for change in (
            *_prefill.SMOKE_CHANGES,
            {"causal": True, "num_kv_heads": 8, "head_dim_qk": 192, "head_dim_vo": 128},
        )
    )
    yield _of(layers.expanded("deepseek-v3", 8), 1, 128, 128)


def _of(model: Model, batch: int, s_qo: int, s_kv: int, **more: Any) -> Shape[RaggedPrefill]:
    shape = {"causal": True, "batch_size": batch, "s_qo": s_qo, "s_kv": s_kv}
    return Shape(RaggedPrefill(**{**shape, **model.parameters, **more}), model)


@ragged_prefill.tier("default")
def _default() -> Iterator[Shape[RaggedPrefill]]:
    """Models' real shapes: single and batched prompts, the chunks of a long one, each type and head size."""
    deepseek, llama = layers.expanded("deepseek-v3"), layers.expanded("llama-3.1-70b")
    for batch, s_qo, s_kv in ((1, 1024, 1024), (16, 1024, 1024), (4, 4096, 4096), (1, 1024, 8192)):
        yield _of(deepseek, batch, s_qo, s_kv)
        yield _of(llama, batch, s_qo, s_kv)
    for model in (deepseek, llama):
        yield _of(model, 16, 1024, 1024, random_actual_seq_len=True)
        yield _of(model, 4, 2048, 2048, causal=False)
        yield _of(model, 4, 2048, 2048, return_lse=True)
    yield _of(llama, 4, 2048, 2048, q_dtype="float16", kv_dtype="float16")
    yield _of(llama, 4, 2048, 2048, kv_dtype="fp8_e4m3")
    yield _of(llama, 4, 2048, 2048, q_dtype="fp8_e4m3", kv_dtype="fp8_e4m3", out_dtype="bfloat16")
    for name, tp in (("deepseek-v3", 8), ("qwen3-14b", 1), ("gpt-oss-120b", 1), ("gemma-3-12b", 1)):
        yield _of(layers.expanded(name, tp), 4, 2048, 2048)


_shared.declare_plans(
    ragged_prefill, ("fa2", "fa3", "cudnn"), lambda batch: _of(layers.expanded("llama-3.1-70b", 8), batch, 16, 16)
)


@ragged_prefill.sweep(layers.expanded)
def _sweep(model: Model) -> Iterator[Shape[RaggedPrefill]]:
    yield from (_of(model, *lengths) for lengths in _prefill.lengths_of_models(model))
