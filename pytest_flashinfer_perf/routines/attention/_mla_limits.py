"""Limits of the library's MLA backends that no decorator declares: a message each, with a way out."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines.attention import _shared
from pytest_flashinfer_perf.routines.attention._problems import BatchMLA
from pytest_flashinfer_perf.spec.dtypes import is_fp8

WRAPPER = "mla.BatchMLAPagedAttentionWrapper"
NATIVE = "mla.trtllm_batch_decode_with_kv_cache_mla"
PRIMS = "attention.prims_ts.BatchMLADecodePagedTSWrapper"

NATIVE_HEADS = ((512, 64), (256, 64), (512, 0))


def chosen_natively(device: Device) -> bool:
    """Whether `auto` is that of the native API, which has kernels for Blackwell only, or that of the wrapper."""
    return device.capability is not None and device.capability[0] == 10


def flash(p: BatchMLA, backend: str, device: Device) -> Iterator[str]:
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
        yield f"{backend} needs a head_dim_ckv in steps of 128 and a head_dim_kpe in steps of 64"


def auto(p: BatchMLA, backend: str, device: Device) -> Iterator[str]:
    yield from native(p, backend, device) if chosen_natively(device) else flash(p, backend, device)


def cutlass(p: BatchMLA, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.no_lse(p, backend)
    yield from _pages(p, backend)
    if is_fp8(p.q_dtype) or p.q_dtype != p.kv_dtype or p.out != p.q_dtype:
        yield f"{backend} needs queries, cache and output all in bfloat16 or float16: use trtllm-native"
    if p.s_qo > 1:
        yield f"{backend} decodes one token per request: use trtllm-native"
    if p.num_qo_heads != 128:
        yield f"{backend} needs 128 query heads, not {p.num_qo_heads}: use trtllm-native"


def native(p: BatchMLA, backend: str, device: Device) -> Iterator[str]:
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


def prims_ts(p: BatchMLA, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, backend)
    yield from _shared.no_lse(p, backend)
    if p.q_dtype != p.kv_dtype:
        yield f"{backend} needs queries and cache of one type"
    if (p.head_dim_ckv, p.head_dim_kpe) != (512, 64) or p.page_size not in _shared.PAGES:
        yield f"{backend} has heads of 512+64 and pages of {_shared.PAGES_LISTED} tokens: use fa2"


def _pages(p: BatchMLA, backend: str) -> Iterator[str]:
    if p.page_size not in (32, 64):
        yield f"{backend} has pages of 32 or 64 tokens, not {p.page_size}: use fa3 or fa2"
