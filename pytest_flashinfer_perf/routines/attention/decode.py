"""BatchDecodeWithPagedKVCacheWrapper and the native decode APIs that compute the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine import capability, devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import _declared, layers
from pytest_flashinfer_perf.routines.attention import _prims, _reference, _requests, _shared
from pytest_flashinfer_perf.routines.attention._problems import BatchDecode, DecodeInputs
from pytest_flashinfer_perf.spec import Built, Cost, LaunchOptions, Model, Routine, Shape
from pytest_flashinfer_perf.spec.dtypes import TORCH, bytes_of, is_fp8

WRAPPER = "BatchDecodeWithPagedKVCacheWrapper"
CUDNN = "decode.cudnn_batch_decode_with_kv_cache"
NATIVE = "decode.trtllm_batch_decode_with_kv_cache"
PRIMS = "attention.prims_ts.BatchDecodePagedTSWrapper"


def inputs(p: BatchDecode, rand: torch.Generator, device: torch.device) -> DecodeInputs:
    lens = _requests.decode(p, rand)
    rows = (p.batch_size * p.s_qo, p.num_qo_heads)
    q = _requests.unquantised((*rows, p.head_dim_qk), p.q_dtype, rand).to(TORCH[p.q_dtype])
    pages = p.batch_size * _shared.pages_per_request(p.s_kv, p.page_size)
    return DecodeInputs(
        q=q,
        kv=_shared.kv_cache((pages, p.num_kv_heads, p.page_size, p.head_dim_qk), p.kv_dtype, rand),
        table=_shared.page_table(lens, p.s_kv, p.page_size, rand),
        seq_lens=lens,
        mask=_shared.draft_mask(p.batch_size, p.s_qo, p.masked, device) if p.s_qo > 1 else None,
        out=torch.empty(*rows, p.head_dim_out, dtype=TORCH[p.out], device=device),
        lse=_shared.empty_lse(p, q),
    )


def reference(p: BatchDecode, x: DecodeInputs, rows: Tensor | None = None) -> tuple[Tensor, ...]:
    requests = _reference.paged(p.s_qo, x.kv.k, x.kv.v, x.table.block_tables, x.seq_lens)
    answers = _reference.answers(x.q, requests, scale=x.kv.k_scale * p.scale, causal=p.masked, rows=rows)
    return _reference.joined(answers, x.kv.v_scale, lse=p.return_lse)


def cost(p: BatchDecode, x: DecodeInputs) -> Cost:
    """Queries, outputs, and the keys and values of actual tokens once each; page table and lengths as they are read."""
    queries = torch.full_like(x.seq_lens, p.s_qo)
    kv = int(x.seq_lens.sum()) * p.num_kv_heads * (p.head_dim_qk + p.head_dim_out) * bytes_of(p.kv_dtype)
    around = (x.q, *_shared.written(x.out, x.lse), x.table.indices, x.table.indptr, x.seq_lens)
    return Cost(
        flops=2 * _requests.pairs(queries, x.seq_lens, causal=p.masked) * p.num_qo_heads * 2 * p.head_dim_qk,
        bytes=kv + sum(t.nbytes for t in around),
        dtype=p.matmul_dtype,
    )


decode = Routine(
    WRAPPER,
    family="attention",
    params=BatchDecode,
    inputs=inputs,
    outputs=lambda x: _shared.written(x.out, x.lse),
    reference=reference,
    cost=cost,
    tolerances=lambda p, backend: _shared.tolerances(p, rounds_queries=backend == "trtllm-native"),
    footprint=BatchDecode.footprint,
    cuda_graph=True,
    facts=lambda p, x: _requests.facts(p, x.seq_lens),
    rows=lambda p, x: _reference.ends(p.s_qo, x.seq_lens),
    activations=lambda x: x.q,
    aliases=_shared.ALIASES,
)


# What the backends cannot do and no decorator declares: a sentence each, with a way out.


def wrapper_limits(p: BatchDecode, backend: str, _device: Device) -> Iterator[str]:
    """Limits of the wrapper's kernels, found by running them; the API does not declare them."""
    if backend == "fa2":
        groups = _declared.dispatched("DISPATCH_GQA_GROUP_SIZE", "group_size")
        if groups and p.group not in groups:
            yield f"fa2 without tensor cores has no kernel for {p.group} query heads per KV head: use fa2_tc"
        if p.s_qo > 1:
            yield "fa2 without tensor cores decodes one token per request: use fa2_tc"
    if backend in ("fa2_tc", "auto", "fa3") and p.s_qo > 1 and p.spec_dec_mask == "full":
        yield f"{backend} masks draft tokens causally, spec_dec_mask full is not available: use trtllm-native"
    if backend == "fa2_tc" and is_fp8(p.q_dtype):
        yield f"fa2_tc needs bfloat16 or float16 queries, q_dtype is {p.q_dtype}: use fa3"
    if backend == "fa3" and is_fp8(p.q_dtype) != is_fp8(p.kv_dtype):
        yield "fa3 needs queries and KV cache both in fp8, or neither: use fa2_tc"
    if backend == "fa3" and p.s_qo > 1:
        yield "fa3 decodes one token per request: use fa2_tc"
    if backend == "trtllm-gen":
        yield from _shared.e4m3_alone(p, backend)
    elif is_fp8(p.out):
        yield f"{backend} has no fp8 output: set out_dtype to bfloat16"


def cudnn_limits(p: BatchDecode, _backend: str, _device: Device) -> Iterator[str]:
    api = capability.api(CUDNN)
    if is_fp8(p.q_dtype) or is_fp8(p.kv_dtype):
        yield "cudnn decodes bfloat16 and float16 only: use fa3 or trtllm-native"
    elif len({p.q_dtype, p.kv_dtype, p.out}) > 1:
        yield "cudnn needs queries, KV cache and output of one type"
    elif p.out != "bfloat16" and not capability.accepts(api, "return_lse"):
        yield "cudnn writes bfloat16 only in this flashinfer: use fa2_tc, or flashinfer 0.7.2"
    if p.s_qo > 1 and not capability.accepts(api, "q_len_per_req"):
        yield "cudnn decodes one token per request in this flashinfer: use fa2_tc, or flashinfer 0.7.2"
    if p.return_lse and not capability.accepts(api, "return_lse"):
        yield "cudnn returns no LSE in this flashinfer: use fa2_tc, or flashinfer 0.7.2"
    if p.s_qo > 1 and not p.masked:
        yield "cudnn masks draft tokens causally, spec_dec_mask full is not available: use trtllm-native"


def native_kernels(device: Device) -> str:
    """The backend that trtllm_batch_decode_with_kv_cache chooses for backend="auto"."""
    return "trtllm-gen" if device.capability is not None and device.capability[0] == 10 else "xqa"


def native_limits(p: BatchDecode, _backend: str, device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, "trtllm-native")
    if native_kernels(device) == "xqa":
        if is_fp8(p.q_dtype):
            yield "trtllm-native is xqa here, which needs bfloat16 or float16 queries: use fa3"
        if is_fp8(p.out) and not is_fp8(p.kv_dtype):
            yield "xqa writes fp8 from an fp8 KV cache only: set kv_dtype to fp8_e4m3"
        yield from _shared.no_lse(p, "xqa")
    elif not capability.accepts(capability.api(NATIVE), "return_lse"):
        yield from _shared.no_lse(p, "trtllm-native of this flashinfer")
    if p.page_size not in _shared.PAGES:
        yield f"trtllm-native has pages of {_shared.PAGES_LISTED} tokens, not {p.page_size}"
    if p.head_dim_qk % 16:
        yield f"trtllm-native needs a head_dim_qk that is a multiple of 16, not {p.head_dim_qk}"


def prims_ts_limits(p: BatchDecode, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.no_lse(p, backend)
    yield from _shared.e4m3_alone(p, backend)
    if p.q_dtype != p.kv_dtype:
        yield "prims-ts needs queries and KV cache of one type"
    if p.page_size not in _shared.PAGES or p.head_dim_qk not in (64, 128, 256):
        yield f"prims-ts has pages of {_shared.PAGES_LISTED} tokens and heads of 64, 128 or 256"


@decode.backend("fa2", "fa2_tc", "fa3", "auto", "trtllm-gen", api=WRAPPER, limits=wrapper_limits)
def _wrapper(p: BatchDecode, x: DecodeInputs, options: LaunchOptions) -> Built[DecodeInputs]:
    from flashinfer import BatchDecodeWithPagedKVCacheWrapper

    table = x.table.copy()
    wrapper = BatchDecodeWithPagedKVCacheWrapper(
        _shared.workspace(x.q.device),
        "HND",
        use_cuda_graph=options.cuda_graph,
        use_tensor_cores=options.backend != "fa2",
        paged_kv_indptr_buffer=table.indptr,
        paged_kv_indices_buffer=table.indices,
        paged_kv_last_page_len_buffer=table.last_page_len,
        backend="fa2" if options.backend == "fa2_tc" else options.backend,
    )
    speculative = {"q_len_per_req": p.s_qo} if p.s_qo > 1 else {}
    heads = (p.num_qo_heads, p.num_kv_heads, p.head_dim_qk, p.page_size)
    # FlashInfer 0.5 has no o_data_type.
    types = {name: one for name, one in p.data_types.items() if capability.accepts(wrapper.plan, name)}
    plan = _shared.planned(wrapper, *table.csr, *heads, **types, block_tables=table.block_tables, **speculative)
    scales = {"k_scale": x.kv.k_scale, "v_scale": x.kv.v_scale} if is_fp8(p.kv_dtype) else {}
    chosen = _shared.resolved(wrapper)
    resolved = "fa2_tc" if chosen == "fa2" and options.backend != "fa2" else chosen

    def launch(x: DecodeInputs) -> object:
        return wrapper.run(x.q, x.kv.pages, out=x.out, enable_pdl=p.enable_pdl, **scales, **_shared.returning(x.lse))

    return Built(launch, resolved, plan=plan)


@decode.backend("cudnn", api=CUDNN, limits=cudnn_limits)
def _cudnn(p: BatchDecode, x: DecodeInputs, options: LaunchOptions) -> Built[DecodeInputs]:
    from flashinfer.decode import cudnn_batch_decode_with_kv_cache

    workspace = _shared.workspace(x.q.device)
    speculative = {"q_len_per_req": p.s_qo} if p.s_qo > 1 else {}

    def launch(x: DecodeInputs) -> object:
        return cudnn_batch_decode_with_kv_cache(
            x.q,
            x.kv.k,
            x.kv.v,
            p.scale,
            workspace,
            max_sequence_kv=p.s_kv,
            actual_seq_lens_kv=x.seq_lens.view(-1, 1, 1, 1),
            block_tables=x.table.block_tables,
            is_cuda_graph_compatible=options.cuda_graph,
            out=x.out,
            **speculative,
            **_shared.returning(x.lse),
        )

    return Built(launch, "cudnn")


@decode.backend("trtllm-native", api=NATIVE, limits=native_limits)
def _native(p: BatchDecode, x: DecodeInputs, _options: LaunchOptions) -> Built[DecodeInputs]:
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

    workspace = _shared.workspace(x.q.device)
    counters = _shared.counters(trtllm_batch_decode_with_kv_cache, p.batch_size, x.q)

    def launch(x: DecodeInputs) -> object:
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
            **counters,
            **_shared.returning(x.lse),
        )

    return Built(launch, native_kernels(devices.device_of(x.q)))


decode.backend("prims-ts", api=PRIMS, limits=prims_ts_limits)(_prims.build_decode)


@decode.backend("torch", limits=_shared.no_lse)
def _torch(p: BatchDecode, _x: DecodeInputs, _options: LaunchOptions) -> Built[DecodeInputs]:
    def launch(x: DecodeInputs) -> object:
        drafts = torch.arange(1 - p.s_qo, 1, device=x.q.device) * int(p.masked)
        kv = _shared.gathered(x.kv.k, x.kv.v, x.table.block_tables, TORCH[p.half])
        q, ends = x.q.unflatten(0, (p.batch_size, p.s_qo)), x.seq_lens[:, None] + drafts
        out = _shared.folded_sdpa(q, kv, ends, x.kv.k_scale * p.scale) * x.kv.v_scale
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
        {"return_lse": True},
        {"s_qo": 4},
        {"s_qo": 2, "spec_dec_mask": "full"},
        {"num_qo_heads": 10},
        {"page_size": 1, "head_dim_qk": 128},
        {"batch_size": 1, "s_kv": 1000},
    )
    yield from (Shape(replace(SMOKE, **change)) for change in changes)
    yield _of(layers.attention("llama-3.1-8b", 8), 1, 512)


def _of(model: Model, batch: int, s_kv: int, **more: Any) -> Shape[BatchDecode]:
    return Shape(BatchDecode(page_size=16, batch_size=batch, s_kv=s_kv, **model.parameters, **more), model)


@decode.tier("default")
def _default() -> Iterator[Shape[BatchDecode]]:
    """Models' real shapes: latency and throughput batches, short and long contexts, each type."""
    llama = layers.attention("llama-3.1-70b")
    for batch, s_kv in ((1, 1024), (16, 1024), (64, 8192), (1, 131072), (256, 2048)):
        yield _of(llama, batch, s_kv)
    for batch, s_kv in ((1, 8192), (64, 1024), (128, 4096)):
        yield _of(layers.attention("llama-3.1-8b"), batch, s_kv)
    for name, tp in (("llama-3.1-70b", 8), ("llama-3.1-405b", 8), ("qwen3-32b", 4), ("gpt-oss-120b", 1)):
        yield from (_of(layers.attention(name, tp), batch, 8192) for batch in (16, 128))
    for batch, s_kv in ((16, 1024), (64, 8192)):
        yield _of(llama, batch, s_kv, random_actual_seq_len=True)
        yield _of(llama, batch, s_kv, kv_dtype="fp8_e4m3")
        yield _of(llama, batch, s_kv, q_dtype="fp8_e4m3", kv_dtype="fp8_e4m3", out_dtype="bfloat16")
    yield _of(llama, 64, 4096, q_dtype="float16", kv_dtype="float16")
    yield _of(llama, 64, 4096, return_lse=True)


_shared.declare_plans(
    decode, ("fa2", "fa2_tc", "fa3"), lambda batch: _of(layers.attention("llama-3.1-70b", 8), batch, 1024)
)


@decode.sweep(layers.attention)
def _sweep(model: Model) -> Iterator[Shape[BatchDecode]]:
    for batch in model.batches(1, 4, 16, 64, 128, 256):
        yield from (_of(model, batch, s_kv) for s_kv in (1024, 4096, 8192, 32768, 131072))
