"""BatchMLAPagedAttentionWrapper and the native MLA decode API: multi-head latent attention on the absorbed queries.

The problem, its reference and its cost come first, then the wrapper's calls, what each backend cannot do, the other
backends, and the tiers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.machine import capability, devices
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines import layers
from pytest_flashinfer_perf.routines._offsets import indptr
from pytest_flashinfer_perf.routines.attention import _prims, _reference, _requests, _shared
from pytest_flashinfer_perf.routines.attention._problems import QK_NOPE, BatchMLA, LatentInputs
from pytest_flashinfer_perf.spec import Built, Cost, LaunchOptions, Model, Routine, Shape, Tolerance
from pytest_flashinfer_perf.spec.dtypes import TORCH, bytes_of, is_fp8


def inputs(p: BatchMLA, rand: torch.Generator, device: torch.device) -> LatentInputs:
    lens = _requests.decode(p, rand)
    q = _requests.normal((p.batch_size * p.s_qo, p.num_qo_heads, p.head_dim), p.q_dtype, rand)
    pages = p.batch_size * _shared.pages_per_request(p.s_kv, p.page_size)
    kv = _requests.normal((pages, p.page_size, p.head_dim), p.kv_dtype, rand)
    return LatentInputs(
        q=q.values,
        kv=kv.values,
        q_scale=q.scale,
        kv_scale=kv.scale,
        table=_shared.page_table(lens, p.s_kv, p.page_size, rand),
        seq_lens=lens,
        q_indptr=indptr(torch.full_like(lens, p.s_qo)),
        out=torch.empty(*q.values.shape[:2], p.head_dim_ckv, dtype=TORCH[p.out], device=device),
        lse=_shared.empty_lse(p, q.values),
    )


def reference(p: BatchMLA, x: LatentInputs, rows: Tensor | None = None) -> tuple[Tensor, ...]:
    """The values are the keys' latent part."""
    keys = x.kv[:, None]
    requests = _reference.paged(p.s_qo, keys, keys[..., : p.head_dim_ckv], x.table.block_tables, x.seq_lens)
    answers = _reference.answers(x.q, requests, scale=x.scale * p.scale, causal=p.masked, rows=rows)
    return _reference.joined(answers, x.kv_scale, lse=p.return_lse)


def cost(p: BatchMLA, x: LatentInputs) -> Cost:
    """Queries, outputs, each actual token once (its keys are its values), page table and lengths as they are read."""
    queries = torch.full_like(x.seq_lens, p.s_qo)
    kv = int(x.seq_lens.sum()) * p.head_dim * bytes_of(p.kv_dtype)
    around = (x.q, *_shared.written(x.out, x.lse), x.table.indices, x.table.indptr, x.seq_lens, x.q_indptr)
    return Cost(
        flops=2
        * _requests.pairs(queries, x.seq_lens, causal=p.masked)
        * p.num_qo_heads
        * (p.head_dim + p.head_dim_ckv),
        bytes=kv + sum(t.nbytes for t in around),
        dtype=p.matmul_dtype,
    )


def footprint(p: BatchMLA) -> int:
    """The cache; queries, outputs and their reference; the workspace."""
    cache = _shared.cache_bytes(p.batch_size, p.s_kv, p.page_size, p.head_dim, p.kv_dtype)
    return cache + _shared.rows_bytes(p.batch_size * p.s_qo * p.num_qo_heads, p.head_dim, p.head_dim_ckv)


# Of an fp8 cache the kernels round the scale to bf16, by up to 2^-9, and the softmax magnifies that by the score.
SCALE_ROUNDED = Tolerance(rtol=2e-2, atol=6e-2, scale=8e-3)


def tolerances(p: BatchMLA, _backend: str) -> tuple[Tolerance, ...]:
    out, *lse = _shared.tolerances(p)
    only_cache_fp8 = is_fp8(p.kv_dtype) and not (is_fp8(p.q_dtype) or is_fp8(p.out))
    return (SCALE_ROUNDED if only_cache_fp8 else out, *lse)


# BatchMLAPagedAttentionWrapper. 0.7.2 plans with metadata and runs on packed tensors; 0.6.18 takes them in parts.


def build_flash(p: BatchMLA, x: LatentInputs, options: LaunchOptions) -> Built[LatentInputs]:
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    csr = {
        "qo_indptr": x.q_indptr,
        "kv_indptr": x.table.indptr,
        "kv_indices": x.table.indices,
        "kv_len_arr": x.seq_lens,
    }
    kept = {name: t.clone() for name, t in csr.items()}
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


mla = Routine(
    "BatchMLAPagedAttentionWrapper",
    family="attention",
    params=BatchMLA,
    inputs=inputs,
    outputs=lambda x: _shared.written(x.out, x.lse),
    reference=reference,
    cost=cost,
    tolerances=tolerances,
    footprint=footprint,
    cuda_graph=True,
    facts=lambda p, x: _requests.facts(p, x.seq_lens),
    rows=lambda p, x: _reference.ends(p.s_qo, x.seq_lens),
    activations=lambda x: x.q,
    aliases=_shared.ALIASES,
)


# What the backends cannot do and no decorator declares: a sentence each, with a way out.

WRAPPER = "mla.BatchMLAPagedAttentionWrapper"
NATIVE = "mla.trtllm_batch_decode_with_kv_cache_mla"
PRIMS = "attention.prims_ts.BatchMLADecodePagedTSWrapper"

NATIVE_HEADS = ((512, 64), (256, 64), (512, 0))


def chosen_natively(device: Device) -> bool:
    """Whether `auto` is that of the native API, which has kernels for Blackwell only, or that of the wrapper."""
    return device.capability is not None and device.capability[0] == 10


def flash_limits(p: BatchMLA, backend: str, device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, backend)
    if is_fp8(p.q_dtype):
        yield f"{backend} needs bfloat16 or float16 queries, q_dtype is {p.q_dtype}: use trtllm-native"
    elif is_fp8(p.kv_dtype) and (p.q_dtype != "bfloat16" or (device.capability or (9, 0))[0] != 9):
        yield f"{backend} reads an fp8 cache with bfloat16 queries on compute capability 9.0 only"
    elif not is_fp8(p.kv_dtype) and p.kv_dtype != p.q_dtype:
        yield f"{backend} needs queries and cache of one type, or an fp8 cache"
    if p.out != p.q_dtype:
        yield f"{backend} writes the type of its queries: leave out out_dtype"
    if p.head_dim_ckv % 128 or p.head_dim_kpe % 64:
        yield f"{backend} needs a head_dim_ckv in multiples of 128 and a head_dim_kpe in multiples of 64"


def auto_limits(p: BatchMLA, backend: str, device: Device) -> Iterator[str]:
    yield from native_limits(p, backend, device) if chosen_natively(device) else flash_limits(p, backend, device)


def cutlass_limits(p: BatchMLA, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.no_lse(p, backend)
    yield from _pages(p, backend)
    if is_fp8(p.q_dtype) or p.q_dtype != p.kv_dtype or p.out != p.q_dtype:
        yield f"{backend} needs queries, cache and output all in bfloat16 or float16: use trtllm-native"
    if p.s_qo > 1:
        yield f"{backend} decodes one token per request: use trtllm-native"
    if p.num_qo_heads != 128:
        yield f"{backend} needs 128 query heads, not {p.num_qo_heads}: use trtllm-native"


def native_limits(p: BatchMLA, backend: str, device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, backend)
    if not chosen_natively(device):
        yield f"{backend} runs on compute capability 10.x only: use fa3 or fa2"
    yield from _pages(p, backend)
    if p.q_dtype != p.kv_dtype:
        yield f"{backend} needs queries and cache of one type, not {p.q_dtype} and {p.kv_dtype}"
    if (p.head_dim_ckv, p.head_dim_kpe) not in NATIVE_HEADS:
        yield f"{backend} has heads of 512+64, 256+64 or 512+0, not {p.head_dim_ckv}+{p.head_dim_kpe}: use fa2"
    if backend == "cute-dsl" and p.num_qo_heads < 128:
        yield f"{backend} needs at least 128 query heads, not {p.num_qo_heads}: use trtllm-native"
    if p.return_lse and not capability.accepts(capability.api(NATIVE), "return_lse_base"):
        yield from _shared.no_lse(p, f"{backend} of this flashinfer")


def prims_ts_limits(p: BatchMLA, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, backend)
    yield from _shared.no_lse(p, backend)
    if p.q_dtype != p.kv_dtype:
        yield f"{backend} needs queries and cache of one type"
    if (p.head_dim_ckv, p.head_dim_kpe) != (512, 64) or p.page_size not in _shared.PAGES:
        yield f"{backend} has heads of 512+64 and pages of {_shared.PAGES_LISTED} tokens: use fa2"


def _pages(p: BatchMLA, backend: str) -> Iterator[str]:
    if p.page_size not in (32, 64):
        yield f"{backend} has pages of 32 or 64 tokens, not {p.page_size}: use fa3 or fa2"


mla.backend("fa2", "fa3", api=WRAPPER, limits=flash_limits)(build_flash)
mla.backend("cutlass", api=WRAPPER, limits=cutlass_limits)(build_cutlass)
mla.backend("prims-ts", api=PRIMS, limits=prims_ts_limits)(_prims.build_mla)


@mla.backend("auto", api=WRAPPER, limits=auto_limits, tunes=True)
def _auto(p: BatchMLA, x: LatentInputs, options: LaunchOptions) -> Built[LatentInputs]:
    return (_native if chosen_natively(devices.device_of(x.q)) else build_flash)(p, x, options)


@mla.backend("trtllm-native", "cute-dsl", api=NATIVE, limits=native_limits)
def _native(p: BatchMLA, x: LatentInputs, options: LaunchOptions) -> Built[LatentInputs]:
    from flashinfer.mla import trtllm_batch_decode_with_kv_cache_mla

    workspace = _shared.workspace(x.q.device)
    kernels = {"trtllm-native": "trtllm-gen"}.get(options.backend, options.backend)
    counters = (
        _shared.counters(trtllm_batch_decode_with_kv_cache_mla, p.batch_size, x.q) if kernels == "trtllm-gen" else {}
    )
    chosen = _choices(p)

    def launch(x: LatentInputs) -> object:
        q, out = (t.unflatten(0, (p.batch_size, p.s_qo)) for t in (x.q, x.out))
        return trtllm_batch_decode_with_kv_cache_mla(
            query=q,
            kv_cache=x.kv[:, None],
            workspace_buffer=workspace,
            qk_nope_head_dim=QK_NOPE,
            kv_lora_rank=p.head_dim_ckv,
            qk_rope_head_dim=p.head_dim_kpe,
            block_tables=x.table.block_tables,
            seq_lens=x.seq_lens,
            max_seq_len=p.s_kv,
            out=out,
            bmm1_scale=x.scale * p.scale,
            bmm2_scale=x.kv_scale,
            backend=kernels,
            enable_pdl=p.enable_pdl,
            **counters,
            **chosen,
            **_shared.returning(x.lse),
        )

    return Built(launch, kernels)


def _choices(p: BatchMLA) -> dict[str, Any]:
    """Keywords for flags that differ from the API's defaults."""
    varies = {"true": True, "false": False, "auto": p.random_actual_seq_len}
    chosen: dict[str, Any] = {"return_lse_base": "base2"} if p.return_lse else {}
    if p.mla_is_var_seq is not None:
        chosen["is_var_seq"] = varies[p.mla_is_var_seq]
    if p.mla_cute_dsl_impl is not None:
        chosen["cute_dsl_impl"] = p.mla_cute_dsl_impl
    return chosen


@mla.backend("torch", limits=_shared.no_lse)
def _torch(p: BatchMLA, _x: LatentInputs, _options: LaunchOptions) -> Built[LatentInputs]:
    def launch(x: LatentInputs) -> object:
        keys = x.kv[:, None]
        kv = _shared.gathered(keys, keys[..., : p.head_dim_ckv], x.table.block_tables, TORCH[p.half])
        q, drafts = x.q.unflatten(0, (p.batch_size, p.s_qo)), torch.arange(1 - p.s_qo, 1, device=x.q.device)
        out = _shared.folded_sdpa(q, kv, x.seq_lens[:, None] + drafts, x.scale * p.scale)
        return x.out.copy_(out.flatten(0, 1) * x.kv_scale)

    return Built(launch, "sdpa")


SMOKE = BatchMLA(page_size=32, batch_size=3, s_kv=100, num_qo_heads=16, head_dim_ckv=512, head_dim_kpe=64)


@mla.tier("smoke")
def _smoke() -> Iterator[Shape[BatchMLA]]:
    """Every type and every path of the code, on shapes that a laptop does in milliseconds."""
    changes: tuple[dict[str, Any], ...] = (
        {},
        {"q_dtype": "float16", "kv_dtype": "float16"},
        {"kv_dtype": "fp8_e4m3"},
        {"q_dtype": "fp8_e4m3", "kv_dtype": "fp8_e4m3"},
        {"random_actual_seq_len": True},
        {"return_lse": True},
        {"s_qo": 4},
        {"page_size": 1},
        {"num_qo_heads": 128},
    )
    yield from (Shape(replace(SMOKE, **change)) for change in changes)
    yield _of(layers.latent("kimi-k2", 8), 1, 512)


def _of(model: Model, batch: int, s_kv: int, **more: Any) -> Shape[BatchMLA]:
    shape = {"page_size": 32, "batch_size": batch, "s_kv": s_kv}
    return Shape(BatchMLA(**{**shape, **model.parameters, **more}), model)


@mla.tier("default")
def _default() -> Iterator[Shape[BatchMLA]]:
    """Models' real shapes: latency and throughput batches, short and long contexts, each type, drafts."""
    deepseek = layers.latent("deepseek-v3")
    for batch, s_kv in ((1, 1024), (16, 1024), (64, 8192), (1, 131072), (128, 2048)):
        yield _of(deepseek, batch, s_kv)
    for name, tp in (("deepseek-v3", 8), ("kimi-k2", 1), ("kimi-k2", 8)):
        yield from (_of(layers.latent(name, tp), batch, 4096) for batch in (16, 128))
    for batch, s_kv in ((16, 1024), (64, 8192)):
        yield _of(deepseek, batch, s_kv, random_actual_seq_len=True)
        yield _of(deepseek, batch, s_kv, kv_dtype="fp8_e4m3")
        yield _of(deepseek, batch, s_kv, q_dtype="fp8_e4m3", kv_dtype="fp8_e4m3")
    yield _of(deepseek, 64, 4096, q_dtype="float16", kv_dtype="float16")
    yield _of(deepseek, 64, 4096, return_lse=True)
    yield from (_of(deepseek, 64, 4096, page_size=page_size) for page_size in (1, 16, 64))
    yield from (_of(deepseek, 16, 4096, s_qo=s_qo) for s_qo in (2, 4))


_shared.declare_plans(mla, ("fa2", "fa3"), lambda batch: _of(layers.latent("deepseek-v3", 8), batch, 1024))


@mla.sweep(layers.latent)
def _sweep(model: Model) -> Iterator[Shape[BatchMLA]]:
    for batch in model.batches(1, 4, 16, 64, 128, 256):
        yield from (_of(model, batch, s_kv) for s_kv in (1024, 4096, 8192, 32768, 131072))
