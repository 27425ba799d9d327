"""BatchDecodeWithPagedKVCacheWrapper and the native decode APIs that compute the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf import capability, devices, models
from pytest_flashinfer_perf.cost import Cost
from pytest_flashinfer_perf.dtypes import TORCH, bytes_of, is_fp8
from pytest_flashinfer_perf.params import Fault, flag
from pytest_flashinfer_perf.routine import Built, How, Routine, Shape
from pytest_flashinfer_perf.routines.attention import _decode_limits, _paged, _shared
from pytest_flashinfer_perf.routines.attention._decode_limits import CUDNN, NATIVE, PRIMS, WRAPPER, native_kernels
from pytest_flashinfer_perf.routines.attention._params import AttentionParams


@dataclass(frozen=True)
class BatchDecode(AttentionParams):
    """One query token per request, or a few draft ones, against a paged KV cache."""

    page_size: int = flag("tokens per KV page", default=0, letter="p", usual=16, minimum=1, draw=(1, 2, 7, 16, 64))
    spec_dec_mask: str = flag("what a draft token sees of the draft", default="causal", choices=("causal", "full"))

    @property
    def masked(self) -> bool:
        return self.s_qo > 1 and (self.causal or self.spec_dec_mask == "causal")

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.head_dim_out != self.head_dim_qk:
            yield "head_dim_vo", f"{self.head_dim_vo} differs from head_dim_qk {self.head_dim_qk}: a KV page holds both"
        if self.s_qo > self.s_kv:
            yield "s_qo", f"{self.s_qo} is more than s_kv {self.s_kv}: the draft tokens are part of the KV sequence"


class Inputs(NamedTuple):
    q: Tensor  # [batch * s_qo, qo heads, dim]
    kv: _paged.KVCache
    table: _paged.PageTable
    seq_lens: Tensor
    mask: Tensor | None
    out: Tensor


def inputs(p: BatchDecode, rand: torch.Generator, device: torch.device) -> Inputs:
    made_in = torch.bfloat16 if is_fp8(p.q_dtype) else TORCH[p.q_dtype]
    rows = (p.batch_size * p.s_qo, p.num_qo_heads)
    q = torch.randn(*rows, p.head_dim_qk, dtype=made_in, device=device, generator=rand).to(TORCH[p.q_dtype])
    lens = _paged.lengths(p.batch_size, p.s_kv, p.s_qo, p.random_actual_seq_len, rand)
    pages = p.batch_size * _paged.pages_per_request(p.s_kv, p.page_size)
    return Inputs(
        q=q,
        kv=_paged.kv_cache((pages, p.num_kv_heads, p.page_size, p.head_dim_qk), p.kv_dtype, rand),
        table=_paged.page_table(lens, p.s_kv, p.page_size, rand),
        seq_lens=lens,
        mask=_paged.draft_mask(p.batch_size, p.s_qo, p.masked, device) if p.s_qo > 1 else None,
        out=torch.empty(*rows, p.head_dim_out, dtype=TORCH[p.out], device=device),
    )


def reference(p: BatchDecode, x: Inputs) -> tuple[Tensor]:
    """Request by request in fp32, each page looked up where the table says it is."""
    outs = [_one_request(p, x, i, length) for i, length in enumerate(x.seq_lens.tolist())]
    return (torch.cat(outs),)


def _one_request(p: BatchDecode, x: Inputs, i: int, length: int) -> Tensor:
    owned = x.table.block_tables[i, : _paged.pages_per_request(length, p.page_size)]
    k, v = (side[owned].float().transpose(0, 1).flatten(1, 2)[:, :length] for side in (x.kv.k, x.kv.v))
    q = x.q[i * p.s_qo : (i + 1) * p.s_qo].float().unflatten(1, (p.num_kv_heads, p.group))
    scores = torch.einsum("shgd,htd->hgst", q, k) * (x.kv.k_scale * p.scale)
    if p.masked:
        last_seen = torch.arange(length - p.s_qo, length, device=q.device)
        scores.masked_fill_(torch.arange(length, device=q.device) > last_seen[:, None], -math.inf)
    return torch.einsum("hgst,htd->shgd", scores.softmax(-1), v).flatten(1, 2) * x.kv.v_scale


def cost(p: BatchDecode, x: Inputs) -> Cost:
    """Queries, outputs, and the keys and values of actual tokens once each; page table and lengths as they are read."""
    tokens = int(x.seq_lens.sum())
    seen = p.s_qo * tokens - (p.batch_size * p.s_qo * (p.s_qo - 1) // 2 if p.masked else 0)
    kv = tokens * p.num_kv_heads * (p.head_dim_qk + p.head_dim_out) * bytes_of(p.kv_dtype)
    tables = sum(t.nbytes for t in (x.table.indices, x.table.indptr, x.seq_lens))
    return Cost(
        flops=2 * seen * p.num_qo_heads * (p.head_dim_qk + p.head_dim_out),
        bytes=x.q.nbytes + kv + tables + x.out.nbytes,
        dtype=_shared.matmul_dtype(p.q_dtype, p.kv_dtype),
    )


def footprint(p: BatchDecode) -> int:
    """The cache as it is drawn, beside itself when it is quantised; queries and outputs; the workspace."""
    tokens = p.batch_size * _paged.pages_per_request(p.s_kv, p.page_size) * p.page_size
    cache = 2 * tokens * p.num_kv_heads * p.head_dim_qk * (3 if is_fp8(p.kv_dtype) else 2)
    rows = p.batch_size * p.s_qo * p.num_qo_heads * p.head_dim_qk
    return cache + 8 * rows + _shared.WORKSPACE_BYTES


decode = Routine(
    WRAPPER,
    family="attention",
    params=BatchDecode,
    inputs=inputs,
    outputs=lambda x: (x.out,),
    reference=reference,
    cost=cost,
    tolerance=lambda p, backend: _shared.tolerance(p, rounds_queries=backend == "trtllm-native"),
    footprint=footprint,
    cuda_graph=True,
    aliases={"trtllm-gen-native": "trtllm-native", "prims_ts": "prims-ts"},
)


@decode.backend("fa2", "fa2_tc", "fa3", "auto", "trtllm-gen", api=WRAPPER, limits=_decode_limits.wrapper)
def _wrapper(p: BatchDecode, x: Inputs, how: How) -> Built[Inputs]:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    table = _paged.PageTable(*(t.clone() for t in x.table))  # the wrapper keeps and may rewrite what it is given
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        _shared.workspace(x.q.device),
        "HND",
        use_cuda_graph=how.cuda_graph,
        use_tensor_cores=how.backend != "fa2",
        paged_kv_indptr_buffer=table.indptr,
        paged_kv_indices_buffer=table.indices,
        paged_kv_last_page_len_buffer=table.last_page_len,
        backend="fa2" if how.backend == "fa2_tc" else how.backend,
    )
    speculative = {"q_len_per_req": p.s_qo} if p.s_qo > 1 else {}
    wrapper.plan(*_csr(p, table), **p.data_types, block_tables=table.block_tables, **speculative)
    scales = {"k_scale": x.kv.k_scale, "v_scale": x.kv.v_scale} if is_fp8(p.kv_dtype) else {}
    return Built(
        lambda x: wrapper.run(x.q, x.kv.pages, out=x.out, enable_pdl=p.enable_pdl, **scales),
        _resolved(wrapper, how.backend),
    )


def _csr(p: BatchDecode, table: _paged.PageTable) -> tuple[Any, ...]:
    heads = (p.num_qo_heads, p.num_kv_heads, p.head_dim_qk)
    return (table.indptr, table.indices, table.last_page_len, *heads, p.page_size)


def _resolved(wrapper: Any, backend: str) -> str:
    chosen = str(getattr(wrapper, "resolved_backend", None) or wrapper._backend)  # noqa: SLF001 - all that 0.6.18 has
    return "fa2_tc" if chosen == "fa2" and backend != "fa2" else chosen


@decode.backend("cudnn", api=CUDNN, limits=_decode_limits.cudnn)
def _cudnn(p: BatchDecode, x: Inputs, how: How) -> Built[Inputs]:
    from flashinfer.decode import cudnn_batch_decode_with_kv_cache

    workspace = _shared.workspace(x.q.device)
    speculative = {"q_len_per_req": p.s_qo} if p.s_qo > 1 else {}

    def launch(x: Inputs) -> object:
        return cudnn_batch_decode_with_kv_cache(
            x.q,
            x.kv.k,
            x.kv.v,
            p.scale,
            workspace,
            max_sequence_kv=p.s_kv,
            actual_seq_lens_kv=x.seq_lens.view(-1, 1, 1, 1),
            block_tables=x.table.block_tables,
            is_cuda_graph_compatible=how.cuda_graph,
            out=x.out,
            **speculative,
        )

    return Built(launch, "cudnn")


@decode.backend("trtllm-native", api=NATIVE, limits=_decode_limits.native)
def _native(p: BatchDecode, x: Inputs, _how: How) -> Built[Inputs]:
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache
    from flashinfer.utils import get_trtllm_gen_multi_ctas_kv_counter_bytes as counter_bytes

    device = devices.of(x.q)
    workspace = _shared.workspace(x.q.device)
    counters = torch.zeros(
        counter_bytes(p.batch_size, p.num_qo_heads, device.processors), dtype=torch.uint8, device=device.torch
    )

    def launch(x: Inputs) -> object:
        return trtllm_batch_decode_with_kv_cache(
            x.q,
            x.kv.pages,
            workspace,
            block_tables=x.table.block_tables,
            seq_lens=x.seq_lens,
            max_seq_len=p.s_kv,
            bmm1_scale=x.kv.k_scale * p.scale,
            bmm2_scale=x.kv.v_scale,
            kv_layout="HND",
            q_len_per_req=p.s_qo,
            mask=x.mask,
            enable_pdl=p.enable_pdl,
            out=x.out,
            out_dtype=TORCH[p.out],
            multi_ctas_kv_counter_buffer=counters,
        )

    return Built(launch, native_kernels(device))


@decode.backend("prims-ts", api=PRIMS, limits=_decode_limits.prims_ts)
def _prims(p: BatchDecode, x: Inputs, _how: How) -> Built[Inputs]:
    from flashinfer.attention.prims_ts import BatchDecodePagedTSWrapper

    wrapper = BatchDecodePagedTSWrapper("HND")
    mask = "causal" if p.s_qo == 1 or p.masked else "dense"
    dense = not capability.accepts(wrapper.plan, "paged_kv_indptr")  # 0.6.18 plans with the CSR form
    if dense:
        shape = (p.batch_size, p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.page_size, p.s_kv)
        wrapper.plan(x.q.device, *shape, max_seq_len_q=p.s_qo, mask_type=mask, **p.data_types)
    else:
        wrapper.plan(*_csr(p, x.table), seq_len_q=p.s_qo, max_kv_len=p.s_kv, mask_type=mask, **p.data_types)

    def launch(x: Inputs) -> object:
        q, out = (t if p.s_qo == 1 else t.unflatten(0, (p.batch_size, p.s_qo)) for t in (x.q, x.out))
        table = (x.seq_lens, x.table.block_tables) if dense else ()
        return wrapper.run(q, x.kv.pages, *table, bmm1_scale=x.kv.k_scale * p.scale, bmm2_scale=x.kv.v_scale, out=out)

    return Built(launch, "prims-ts")


@decode.backend("torch")
def _torch(p: BatchDecode, _x: Inputs, _how: How) -> Built[Inputs]:
    def launch(x: Inputs) -> object:
        drafts = torch.arange(1 - p.s_qo, 1, device=x.q.device) * int(p.masked)
        q = x.q.unflatten(0, (p.batch_size, p.s_qo))
        compute = _shared.half_of(p.q_dtype, p.kv_dtype)
        out = _shared.gathered_sdpa(q, x.kv, x.table.block_tables, x.seq_lens[:, None] + drafts, compute)
        return x.out.copy_(out.flatten(0, 1))

    return Built(launch, "sdpa")


SMOKE = BatchDecode(page_size=16, batch_size=4, s_kv=256, num_qo_heads=8, num_kv_heads=2, head_dim_qk=64)


@decode.tier("smoke")
def _smoke() -> Iterator[Shape[BatchDecode]]:
    """Every type and every path of the code, on shapes that a laptop does in milliseconds."""
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"q_dtype": "float16", "kv_dtype": "float16"},
        {"kv_dtype": "fp8_e4m3"},
        {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3", "out_dtype": "bfloat16"},
        {"random_actual_seq_len": True},
        {"s_qo": 4},
        {"s_qo": 2, "spec_dec_mask": "full"},
        {"num_qo_heads": 10},
        {"page_size": 1, "head_dim_qk": 128},
        {"batch_size": 1, "s_kv": 1000},
    )
    yield from (Shape(replace(SMOKE, **change)) for change in changes)
    yield _preset("llama-3.1-8b", 8, 1, 512)


def _preset(name: str, tp: int, batch: int, s_kv: int, **more: Any) -> Shape[BatchDecode]:
    model = models.attention(name, tp)
    return Shape(BatchDecode(page_size=16, batch_size=batch, s_kv=s_kv, **model.settles, **more), model)


@decode.tier("default")
def _default() -> Iterator[Shape[BatchDecode]]:
    """Models' real shapes: latency and throughput batches, short and long contexts, each type."""
    for batch, s_kv in ((1, 1024), (16, 1024), (64, 8192), (1, 131072), (256, 2048)):
        yield _preset("llama-3.1-70b", 1, batch, s_kv)
    for batch, s_kv in ((1, 8192), (64, 1024), (128, 4096)):
        yield _preset("llama-3.1-8b", 1, batch, s_kv)
    for batch, s_kv in ((16, 8192), (128, 8192)):
        yield _preset("llama-3.1-70b", 8, batch, s_kv)
        yield _preset("llama-3.1-405b", 8, batch, s_kv)
        yield _preset("qwen3-32b", 4, batch, s_kv)
        yield _preset("gpt-oss-120b", 1, batch, s_kv)
    yield _preset("llama-3.1-70b", 1, 16, 1024, random_actual_seq_len=True)
    yield _preset("llama-3.1-70b", 1, 64, 8192, random_actual_seq_len=True)
    for batch, s_kv in ((16, 1024), (64, 8192)):
        yield _preset("llama-3.1-70b", 1, batch, s_kv, kv_dtype="fp8_e4m3")
        yield _preset("llama-3.1-70b", 1, batch, s_kv, q_dtype="fp8_e4m3", kv_dtype="fp8_e4m3", out_dtype="bfloat16")
    yield _preset("llama-3.1-70b", 1, 64, 4096, q_dtype="float16", kv_dtype="float16")


@decode.tier("full")
def _full() -> Iterator[Shape[BatchDecode]]:
    for name, whole in models.ATTENTION.items():
        for tp in (tp for tp in (1, 2, 4, 8) if whole.num_qo_heads % tp == 0):
            for batch in (1, 4, 16, 64, 128, 256):
                yield from (_preset(name, tp, batch, s_kv) for s_kv in (1024, 4096, 8192, 32768, 131072))
