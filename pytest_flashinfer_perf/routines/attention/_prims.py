"""The prims-ts wrappers. 0.7.2 plans with shapes and runs with tensors; 0.6.18 plans with the tensors."""

from __future__ import annotations

from typing import Any

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.routines.attention import _shared
from pytest_flashinfer_perf.routines.attention._problems import (
    BatchDecode,
    BatchMLA,
    DecodeInputs,
    LatentInputs,
    PagedInputs,
    PagedPrefill,
    RaggedInputs,
    RaggedPrefill,
)
from pytest_flashinfer_perf.routines.attention._requests import GroupedQueries
from pytest_flashinfer_perf.spec.dtypes import TORCH
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions


def build_decode(p: BatchDecode, x: DecodeInputs, _options: LaunchOptions) -> Built[DecodeInputs]:
    from flashinfer.attention.prims_ts import BatchDecodePagedTSWrapper

    wrapper = BatchDecodePagedTSWrapper("HND")
    mask = "causal" if p.s_qo == 1 or p.masked else "dense"
    by_shape = not capability.accepts(wrapper.plan, "paged_kv_indptr")
    if by_shape:
        shape = (p.batch_size, p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.page_size, p.s_kv)
        plan = _shared.planned(wrapper, x.q.device, *shape, max_seq_len_q=p.s_qo, mask_type=mask, **p.data_types)
    else:
        heads = (p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.page_size)
        plan = _shared.planned(
            wrapper, *x.table.csr, *heads, seq_len_q=p.s_qo, max_kv_len=p.s_kv, mask_type=mask, **p.data_types
        )

    def launch(x: DecodeInputs) -> object:
        q, out = (t if p.s_qo == 1 else t.unflatten(0, (p.batch_size, p.s_qo)) for t in (x.q, x.out))
        table = (x.seq_lens, x.table.block_tables) if by_shape else ()
        return wrapper.run(q, x.kv.pages, *table, bmm1_scale=x.kv.k_scale * p.scale, bmm2_scale=x.kv.v_scale, out=out)

    return Built(launch, "prims-ts", plan=plan)


def build_paged(p: PagedPrefill, x: PagedInputs, _options: LaunchOptions) -> Built[PagedInputs]:
    from flashinfer.attention.prims_ts import BatchPrefillPagedTSWrapper

    wrapper = BatchPrefillPagedTSWrapper("HND")
    keywords = {"page_size": p.page_size, **_keywords(p, x.q_scale * x.kv.k_scale, x.kv.v_scale)}
    by_shape = not capability.accepts(wrapper.plan, "paged_kv_indptr")
    if by_shape:
        plan = _shared.planned(wrapper, device=x.q.device, head_dim=p.head_dim_qk, **_shape(p), **keywords)
    else:
        plan = _shared.planned(wrapper, x.q, x.kv.k, x.kv.v, x.lens.q_indptr, *x.table.csr, **keywords)

    def launch(x: PagedInputs) -> object:
        table = (x.lens.q_indptr, x.table.block_tables, x.lens.kv) if by_shape else ()
        return wrapper.run(x.q, x.kv.k, x.kv.v, *table, out=x.out)

    return Built(launch, "prims-ts", plan=plan)


def build_ragged(p: RaggedPrefill, x: RaggedInputs, _options: LaunchOptions) -> Built[RaggedInputs]:
    from flashinfer.attention.prims_ts import BatchPrefillTSWrapper

    wrapper = BatchPrefillTSWrapper()
    keywords = _keywords(p, x.q_scale * x.k_scale, x.v_scale)
    by_shape = not capability.accepts(wrapper.plan, "qo_indptr")
    if by_shape:
        plan = _shared.planned(wrapper, device=x.q.device, head_dim=p.head_dim_qk, packed=True, **_shape(p), **keywords)
    else:
        plan = _shared.planned(
            wrapper, x.q, x.k, x.v, qo_indptr=x.lens.q_indptr, kv_indptr=x.lens.kv_indptr, **keywords
        )

    def launch(x: RaggedInputs) -> object:
        offsets = (x.lens.q_indptr, x.lens.kv_indptr) if by_shape else ()
        return wrapper.run(x.q, x.k, x.v, *offsets, out=x.out)

    return Built(launch, "prims-ts", plan=plan)


def _shape(p: GroupedQueries) -> dict[str, Any]:
    return {
        "batch_size": p.batch_size,
        "max_seq_len_q": p.s_qo,
        "max_kv_len": p.s_kv,
        "num_qo_heads": p.num_qo_heads,
        "num_kv_heads": p.num_kv_heads,
        "q_dtype": TORCH[p.q_dtype],
        "k_dtype": TORCH[p.kv_dtype],
    }


def _keywords(p: GroupedQueries, qk_scale: float, v_scale: float) -> dict[str, Any]:
    return {
        "mask_type": "causal" if p.causal else "dense",
        "sm_scale": qk_scale * p.scale,
        "output_scale": v_scale,
        "out_dtype": TORCH[p.out],
    }


def build_mla(p: BatchMLA, x: LatentInputs, _options: LaunchOptions) -> Built[LatentInputs]:
    from flashinfer.attention.prims_ts import BatchMLADecodePagedTSWrapper

    wrapper = BatchMLADecodePagedTSWrapper()
    latent = (p.num_qo_heads, p.head_dim_ckv, p.head_dim_kpe, p.page_size)
    types = {
        "q_data_type": TORCH[p.q_dtype],
        "kv_data_type": TORCH[p.kv_dtype],
        "o_data_type": TORCH[p.out],
        "mask_type": "causal",
    }
    by_shape = not capability.accepts(wrapper.plan, "block_tables")
    if by_shape:
        shape = (x.q.device, p.batch_size, *latent, p.s_kv)
        plan = _shared.planned(wrapper, *shape, max_seq_len_q=p.s_qo, packed_query=False, **types)
    else:
        plan = _shared.planned(
            wrapper, x.table.block_tables, x.seq_lens, *latent, seq_len_q=p.s_qo, max_kv_len=p.s_kv, **types
        )

    def launch(x: LatentInputs) -> object:
        q, out = (t.unflatten(0, (p.batch_size, p.s_qo)) for t in (x.q, x.out))
        table = (x.table.block_tables, x.seq_lens) if by_shape else ()
        return wrapper.run(q, x.kv, *table, bmm1_scale=x.scale * p.scale, bmm2_scale=x.kv_scale, out=out)

    return Built(launch, "prims-ts", plan=plan)
