"""Limits of the library's prefill backends that no decorator declares: a message each, with a way out."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.routines.attention import _shared
from pytest_flashinfer_perf.routines.attention._params import GroupedQueries
from pytest_flashinfer_perf.routines.attention._problems import PagedPrefill, RaggedPrefill
from pytest_flashinfer_perf.spec.dtypes import FP8, is_fp8

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


def paged_wrapper(p: PagedPrefill, backend: str, device: Device) -> Iterator[str]:
    if backend == "trtllm-gen":
        yield from _blackwell_context(p, backend, device)
    else:
        yield from _flash(p, backend)


def ragged_wrapper(p: RaggedPrefill, backend: str, _device: Device) -> Iterator[str]:
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


def cudnn(p: GroupedQueries, backend: str, device: Device) -> Iterator[str]:
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


def context(p: PagedPrefill, backend: str, device: Device) -> Iterator[str]:
    yield from _blackwell_context(p, backend, device)
    if p.return_lse and not capability.accepts(capability.api(CONTEXT), "return_lse"):
        yield from _shared.no_lse(p, f"{backend} of this flashinfer")


def deepseek(p: RaggedPrefill, backend: str, device: Device) -> Iterator[str]:
    yield from _blackwell(backend, device)
    yield from _shared.e4m3_alone(p, backend)
    if (p.head_dim_qk, p.head_dim_out) not in ((192, 128), (128, 128), (256, 256)):
        yield f"{backend} has heads of 192/128, 128/128 or 256/256, not {p.head_dim_qk}/{p.head_dim_out}: use fa2"
    if is_fp8(p.out):
        yield f"{backend} has no fp8 output: set out_dtype to bfloat16"


def fmha_v2(p: GroupedQueries, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, backend)
    yield from _shared.no_lse(p, backend)
    if p.q_dtype != p.kv_dtype:
        yield f"{backend} needs queries and keys of one type, not {p.q_dtype} and {p.kv_dtype}: use fa2"
    elif p.q_dtype not in FP8 and p.out != p.q_dtype:
        yield f"{backend} writes the type of its inputs: leave out out_dtype"


def reads_separately(device: Device) -> bool:
    """Whether fmha-v2 has kernels for keys and values in two tensors."""
    return device.capability is None or device.capability[0] != 12


def ragged_fmha_v2(p: RaggedPrefill, backend: str, device: Device) -> Iterator[str]:
    yield from fmha_v2(p, backend, device)
    if p.head_dim_qk != p.head_dim_out:
        yield f"{backend} has no kernel for keys of {p.head_dim_qk} and values of {p.head_dim_out}: use fa3"
    if p.s_qo != p.s_kv:  # its TMA map of keys and values is as long as the queries: the rest reads as zeros
        yield f"{backend} is wrong where there are more keys than queries: set s_qo to s_kv, or use fa3"


def prims_ts(p: GroupedQueries, backend: str, _device: Device) -> Iterator[str]:
    yield from _shared.e4m3_alone(p, backend)
    yield from _shared.no_lse(p, backend)
    if p.q_dtype != p.kv_dtype:
        yield f"{backend} needs queries and keys of one type: use fa2"
    if p.head_dim_qk != p.head_dim_out or p.head_dim_qk not in (128, 256):
        yield f"{backend} has heads of 128 or 256, not {p.head_dim_qk}/{p.head_dim_out}: use fa2"


def paged_prims_ts(p: PagedPrefill, backend: str, device: Device) -> Iterator[str]:
    yield from prims_ts(p, backend, device)
    if p.page_size not in _shared.PAGES:
        yield f"{backend} has pages of {_shared.PAGES_LISTED} tokens, not {p.page_size}: use fa2"
