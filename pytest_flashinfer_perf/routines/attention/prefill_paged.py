"""BatchPrefillWithPagedKVCacheWrapper and the native prefill APIs that compute the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.routines import layers
from pytest_flashinfer_perf.routines.attention import _prefill, _prims, _reference, _requests, _shared
from pytest_flashinfer_perf.routines.attention._prefill import CONTEXT, CUDNN, FMHA_V2, PAGED, PAGED_PRIMS
from pytest_flashinfer_perf.routines.attention._problems import Paged, PagedInputs, PagedPrefill
from pytest_flashinfer_perf.spec import Built, Cost, LaunchOptions, Model, Shape
from pytest_flashinfer_perf.spec.dtypes import TORCH, bytes_of


def inputs(p: PagedPrefill, rand: torch.Generator, device: torch.device) -> PagedInputs:
    lens = _requests.prefill(p, rand)
    q = _requests.normal((int(lens.q.sum()), p.num_qo_heads, p.head_dim_qk), p.q_dtype, rand)
    pages = p.batch_size * _shared.pages_per_request(p.s_kv, p.page_size)
    return PagedInputs(
        q=q.values,
        q_scale=q.scale,
        kv=_shared.kv_cache((pages, p.num_kv_heads, p.page_size, p.head_dim_qk), p.kv_dtype, rand),
        table=_shared.page_table(lens.kv, p.s_kv, p.page_size, rand),
        lens=lens,
        out=torch.empty(q.values.shape, dtype=TORCH[p.out], device=device),
        lse=_shared.empty_lse(p, q.values),
    )


def reference(p: PagedPrefill, x: PagedInputs, rows: Tensor | None = None) -> tuple[Tensor, ...]:
    """The reference, request by request, with pages looked up in the page table."""

    def read(x: PagedInputs, i: int, keys: slice) -> tuple[Tensor, Tensor]:
        return _reference.read_pages(x.k, x.v, x.table.block_tables[i], keys.stop - keys.start)

    return _prefill.reference(p, x, read, rows)


def cost(p: PagedPrefill, x: PagedInputs) -> Cost:
    """The keys and values of actual tokens once each; page table and lengths as they are read."""
    kv = int(x.lens.kv.sum()) * p.num_kv_heads * 2 * p.head_dim_qk * bytes_of(p.kv_dtype)
    return _prefill.cost(p, x, kv, x.table.indices, x.table.indptr, x.lens.kv)


paged_prefill = _prefill.routine(PAGED, PagedPrefill, inputs, reference, cost, Paged.footprint)


@paged_prefill.backend("fa2", "fa3", "auto", "trtllm-gen", api=PAGED, limits=_prefill.paged_wrapper_limits)
def _wrapper(p: PagedPrefill, x: PagedInputs, options: LaunchOptions) -> Built[PagedInputs]:
    wrapper, plan = _planned(p, x, options, x.lens.q_indptr)
    scales = {"q_scale": x.q_scale, "k_scale": x.k_scale, "v_scale": x.v_scale} if p.quantised else {}

    def launch(x: PagedInputs) -> object:
        return wrapper.run(x.q, x.kv.pages, out=x.out, enable_pdl=p.enable_pdl, **scales, **_shared.returning(x.lse))

    return Built(launch, _shared.resolved(wrapper), plan=plan)


def _planned(
    p: PagedPrefill, x: PagedInputs, options: LaunchOptions, offsets: Tensor, *, layout: str = "HND", **more: Any
) -> tuple[Any, Callable[[], object]]:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    table, q_indptr = x.table.copy(), offsets.clone()
    wrapper = BatchPrefillWithPagedKVCacheWrapper(
        _shared.workspace(x.q.device),
        layout,
        use_cuda_graph=_prefill.plans_for_graphs(options),
        qo_indptr_buf=q_indptr,
        paged_kv_indptr_buf=table.indptr,
        paged_kv_indices_buf=table.indices,
        paged_kv_last_page_len_buf=table.last_page_len,
        backend=options.backend,
    )
    heads = (p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.page_size)
    keywords = {"causal": p.causal, **p.data_types, "block_tables": table.block_tables, **more}
    return wrapper, _shared.planned(wrapper, q_indptr, *table.csr, *heads, **keywords)


@paged_prefill.backend("cudnn", api=PAGED, limits=_prefill.cudnn_limits)
def _cudnn(p: PagedPrefill, x: PagedInputs, options: LaunchOptions) -> Built[PagedInputs]:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    keywords = _prefill.cudnn_plan(p, x)
    if capability.accepts(BatchPrefillWithPagedKVCacheWrapper.plan, "uniform_q_len"):
        wrapper, plan = _planned(p, x, options, x.lens.q_indptr, **keywords)
    else:  # until 0.7.2 in elements; it took pages in HND order, and only if they were called NHD
        elements = _shared.element_offsets(x.lens.q_indptr, p.num_qo_heads, p.head_dim_qk)
        wrapper, plan = _planned(p, x, options, elements, layout="NHD", **keywords)
    scales = _prefill.cudnn_scales(p, x)

    def launch(x: PagedInputs) -> object:
        return wrapper.run(x.q, (x.k, x.v), out=x.out, enable_pdl=p.enable_pdl, **scales, **_shared.returning(x.lse))

    return Built(launch, "cudnn", plan=plan)


@paged_prefill.backend("cudnn-native", api=CUDNN, limits=_prefill.cudnn_limits)
def _cudnn_native(p: PagedPrefill, x: PagedInputs, options: LaunchOptions) -> Built[PagedInputs]:
    return _prefill.build_cudnn_native(p, x, options, _dense_table)


def _dense_table(x: PagedInputs) -> dict[str, Tensor]:
    return {"block_tables": x.table.block_tables}


@paged_prefill.backend("trtllm-native", api=CONTEXT, limits=_prefill.context_limits)
def _context(p: PagedPrefill, x: PagedInputs, _options: LaunchOptions) -> Built[PagedInputs]:
    from flashinfer.prefill import trtllm_batch_context_with_kv_cache

    workspace = _shared.workspace(x.q.device)
    counters = _shared.counters(trtllm_batch_context_with_kv_cache, p.batch_size, x.q)

    def launch(x: PagedInputs) -> object:
        return trtllm_batch_context_with_kv_cache(
            query=x.q,
            kv_cache=x.kv.pages,
            workspace_buffer=workspace,
            block_tables=x.table.block_tables,
            seq_lens=x.lens.kv,
            max_q_len=p.s_qo,
            max_kv_len=p.s_kv,
            bmm1_scale=_prefill.qk_scale(p, x),
            bmm2_scale=x.v_scale,
            batch_size=p.batch_size,
            cum_seq_lens_q=x.lens.q_indptr,
            cum_seq_lens_kv=x.lens.kv_indptr,
            kv_layout="HND",
            enable_pdl=p.enable_pdl,
            out=x.out,
            out_dtype=TORCH[p.out],
            **counters,
            **_shared.returning(x.lse),
        )

    return Built(launch, "trtllm-gen")


@paged_prefill.backend("trtllm-fmha-v2", api=FMHA_V2, limits=_prefill.fmha_v2_limits)
def _fmha_v2(p: PagedPrefill, x: PagedInputs, _options: LaunchOptions) -> Built[PagedInputs]:
    return _prefill.build_fmha_v2(p, x, "Q_PAGED_KV_HND", lambda x: (x.q, x.kv.pages), _dense_table)


paged_prefill.backend("prims-ts", api=PAGED_PRIMS, limits=_prefill.paged_prims_ts_limits)(_prims.build_paged)


@paged_prefill.backend("torch", limits=_shared.no_lse)
def _torch(p: PagedPrefill, x: PagedInputs, _options: LaunchOptions) -> Built[PagedInputs]:
    def read(x: PagedInputs, i: int, keys: slice) -> tuple[Tensor, Tensor]:
        length = keys.stop - keys.start
        k, v = _shared.gathered(x.k, x.v, x.table.block_tables[i : i + 1], TORCH[p.half])
        return k[0, :, :length], v[0, :, :length]

    return _prefill.build_torch(p, x, read)


SMOKE = PagedPrefill(page_size=16, batch_size=3, s_qo=40, s_kv=70, num_qo_heads=8, num_kv_heads=2, head_dim_qk=64)


@paged_prefill.tier("smoke")
def _smoke() -> Iterator[Shape[PagedPrefill]]:
    yield from (
        Shape(replace(SMOKE, **change))
        for change in (*_prefill.SMOKE_CHANGES, {"causal": True, "page_size": 1, "head_dim_qk": 128})
    )
    yield _of(layers.attention("llama-3.1-8b", 8), 1, 128, 128)


def _of(model: Model, batch: int, s_qo: int, s_kv: int, **more: Any) -> Shape[PagedPrefill]:
    shape = {"page_size": 16, "causal": True, "batch_size": batch, "s_qo": s_qo, "s_kv": s_kv}
    return Shape(PagedPrefill(**{**shape, **model.parameters, **more}), model)


@paged_prefill.tier("default")
def _default() -> Iterator[Shape[PagedPrefill]]:
    """Models' real shapes: single and batched prompts, the chunks of a long one, each type, page and head size."""
    llama = layers.attention("llama-3.1-70b")
    for batch, s_qo, s_kv in ((1, 1024, 1024), (16, 1024, 1024), (4, 4096, 4096), (1, 16384, 16384)):
        yield _of(llama, batch, s_qo, s_kv)
    for batch, s_qo, s_kv in ((1, 2048, 32768), (8, 256, 8192), (64, 16, 4096)):
        yield _of(llama, batch, s_qo, s_kv)
    yield _of(llama, 4, 2048, 2048, causal=False)
    yield _of(llama, 1, 1024, 1024, random_actual_seq_len=True)
    yield _of(llama, 16, 2048, 2048, random_actual_seq_len=True)
    yield _of(llama, 4, 2048, 2048, return_lse=True)
    yield _of(llama, 4, 2048, 2048, q_dtype="float16", kv_dtype="float16")
    for page_size in (1, 64, 128):
        yield _of(llama, 4, 2048, 2048, page_size=page_size)
    for s_qo, s_kv in ((2048, 2048), (256, 8192)):
        yield _of(llama, 4, s_qo, s_kv, kv_dtype="fp8_e4m3")
        yield _of(llama, 4, s_qo, s_kv, q_dtype="fp8_e4m3", kv_dtype="fp8_e4m3", out_dtype="bfloat16")
    for name, tp in (("llama-3.1-405b", 8), ("qwen3-14b", 1), ("gpt-oss-120b", 1), ("gemma-3-12b", 1)):
        yield _of(layers.attention(name, tp), 4, 2048, 2048)


_shared.declare_plans(
    paged_prefill, ("fa2", "fa3", "cudnn"), lambda batch: _of(layers.attention("llama-3.1-70b", 8), batch, 16, 1024)
)


@paged_prefill.sweep(layers.attention)
def _sweep(model: Model) -> Iterator[Shape[PagedPrefill]]:
    yield from (_of(model, *lengths) for lengths in _prefill.lengths_of_models(model))
