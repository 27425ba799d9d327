"""BatchMLAPagedAttentionWrapper. 0.7.2 plans with metadata and runs on packed tensors; 0.6.18 takes them in parts."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.routines.attention import _shared
from pytest_flashinfer_perf.routines.attention._problems import BatchMLA, LatentInputs
from pytest_flashinfer_perf.spec.dtypes import TORCH, is_fp8
from pytest_flashinfer_perf.spec.routine import Built, LaunchOptions


def build_flash(p: BatchMLA, x: LatentInputs, options: LaunchOptions) -> Built[LatentInputs]:
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    kept = {name: t.clone() for name, t in _csr(x).items()}
    buffers = _shared.workspace(x.q.device)
    wrapper = BatchMLAPagedAttentionWrapper(buffers, use_cuda_graph=options.cuda_graph, **kept, backend=options.backend)
    packed = capability.accepts(wrapper.plan, "metadata")
    if packed:
        from flashinfer.mla import MLAPlanMetadata

        lse = {"lse_mode": "base2"} if p.return_lse else {}
        plan = _shared.planned(wrapper, metadata=MLAPlanMetadata.csr(**kept), **_problem(p), **lse)
    else:
        plan = _shared.planned(wrapper, **kept, **_problem(p))
    scales = {"ckv_scale": x.kv_scale, "kpe_scale": x.kv_scale} if is_fp8(p.kv_dtype) else {}

    def launch(x: LatentInputs) -> object:
        keywords = {"out": x.out, **scales, **_shared.returning(x.lse)}
        if packed:
            return wrapper.run(query=x.q, kv_cache=x.kv, **keywords)
        return wrapper.run(*_split(p, x.q), *_split(p, x.kv), **keywords)

    return Built(launch, _shared.resolved(wrapper), plan=plan)


def _csr(x: LatentInputs) -> dict[str, Tensor]:
    pages = {"kv_indptr": x.table.indptr, "kv_indices": x.table.indices}
    return {"qo_indptr": x.q_indptr, **pages, "kv_len_arr": x.seq_lens}


def _problem(p: BatchMLA) -> dict[str, Any]:
    return {
        "num_heads": p.num_qo_heads,
        "head_dim_ckv": p.head_dim_ckv,
        "head_dim_kpe": p.head_dim_kpe,
        "page_size": p.page_size,
        "causal": p.masked,
        "sm_scale": p.scale,
        "q_data_type": TORCH[p.q_dtype],
        "kv_data_type": TORCH[p.kv_dtype],
    }


def _split(p: BatchMLA, packed: Tensor) -> tuple[Tensor, Tensor]:
    return packed[..., : p.head_dim_ckv], packed[..., p.head_dim_ckv :]


def build_cutlass(p: BatchMLA, x: LatentInputs, _options: LaunchOptions) -> Built[LatentInputs]:
    """Build the call of this backend, which needs no plan."""
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    wrapper = BatchMLAPagedAttentionWrapper(_shared.workspace(x.q.device), backend="cutlass")

    def launch(x: LatentInputs) -> object:
        table = {"kv_len": x.seq_lens, "page_table": x.table.block_tables}
        return wrapper.run(*_split(p, x.q), *_split(p, x.kv), out=x.out, **table)

    return Built(launch, "cutlass")
