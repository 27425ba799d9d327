"""Limits of the library's decode backends that no decorator declares: a message each, with a way out."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines.attention import _shared
from pytest_flashinfer_perf.routines.attention._problems import BatchDecode
from pytest_flashinfer_perf.spec.dtypes import is_fp8

WRAPPER = "BatchDecodeWithPagedKVCacheWrapper"
CUDNN = "decode.cudnn_batch_decode_with_kv_cache"
NATIVE = "decode.trtllm_batch_decode_with_kv_cache"
PRIMS = "attention.prims_ts.BatchDecodePagedTSWrapper"


def wrapper(p: BatchDecode, backend: str, _device: Device) -> Iterator[str]:
    """Limits of the wrapper's kernels, found by running them; the API does not declare them."""
    if backend == "fa2":
        groups = capability.dispatched("DISPATCH_GQA_GROUP_SIZE", "group_size")
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


def cudnn(p: BatchDecode, _backend: str, _device: Device) -> Iterator[str]:
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


def native(p: BatchDecode, _backend: str, device: Device) -> Iterator[str]:
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


def prims_ts(p: BatchDecode, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.no_lse(p, backend)
    yield from _shared.e4m3_alone(p, backend)
    if p.q_dtype != p.kv_dtype:
        yield "prims-ts needs queries and KV cache of one type"
    if p.page_size not in _shared.PAGES or p.head_dim_qk not in (64, 128, 256):
        yield f"prims-ts has pages of {_shared.PAGES_LISTED} tokens and heads of 64, 128 or 256"
