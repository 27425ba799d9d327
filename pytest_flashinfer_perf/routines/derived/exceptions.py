"""Exceptions for single APIs, each with its reason; everything else is derived from the templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from pytest_flashinfer_perf.routines.derived.templates import Api

BY_COLUMNS = "by columns"
ONE_RANK = "it knows of one rank alone"  # and so does the workspace that its `init` makes
# References that know less than their API, by a part of the template's name, or of the path of its API.
WEAK: Mapping[str, str] = {
    "gqa_paged_prefill": "it takes all requests for equally long ones",
    "trtllm_batch_context": "it ignores the lengths of requests",
    "flashinfer.comm.": ONE_RANK,
}
# Outputs whose reference answers another question, and which: they are not compared.
OTHERWISE: Mapping[str, tuple[tuple[str, ...], str]] = {
    "rope_quantize_fp8_append": (("paged_kv_cache[0]",), "it has the two parts of K in the other order"),
    "mxfp4_quantize": (("quantized", "scales"), "it rounds scales down, which the kernel rounds up"),
    "mxfp8_quantize": (("quantized", "scales"), "it rounds scales down, which the kernel rounds up"),
    "fp4_quantize": (("scales", "sf"), "it has scales by rows, which the kernel swizzles"),
    "nvfp4_experts_quantize": (("a_fp4", "a_sf"), "it has neither the kernel's scales nor its layout"),
}
# APIs whose GPUs nothing but their backend's name says, which is in `machine/capability.py`.
RUNS_AS: Mapping[str, str] = {
    "fused_moe.core.trtllm_": "trtllm",
    "fused_moe.backends.prims_ts": "prims-ts",
    "trtllm_batch_context": "trtllm-gen",
    "trtllm_ragged_attention": "trtllm-gen",
}
# What a reference takes for granted and `init` does not say.
ARGUMENTS: Mapping[str, Mapping[str, bool]] = {
    "pod_run": {"causal_p": True},
    "segment_gemm_run": {"weight_column_major": False},
}
# Tensors that the API takes by columns, or in another type, where `init` makes them by rows.
TAKEN_AS: Mapping[str, Mapping[str, str]] = {
    "bmm_": {"B": BY_COLUMNS},
    "mm_M1_16_K7168_N256": {"mat_b": BY_COLUMNS, "out": "float32"},
}
# Outputs besides indices that may come in any order.
UNORDERED: Mapping[str, tuple[str, ...]] = {"top_k": ("values",)}
# Sizes of the smoke tier that the common ones do not fit.
SMALL: Mapping[str, Mapping[str, int]] = {
    "gdn_mtp": {"batch_size": 4},  # its reference reads one state for each request, of which `init` makes 8
    "gdn_fused_decode": {"batch_size": 4},  # one page for each request, of which `init` makes 4
    "batch_deepgemm_fp8_nt_groupwise": {"batch_size": 1, "N": 512, "K": 512},  # quantises block by block, in Python
    "trtllm_batch_decode_mla_sparse": {"batch_size": 1, "sparse_mla_top_k": 16},  # gathers 2048 pages for each query
    "fmha_v2_prefill_": {"batch_size": 1, "num_heads": 4},  # a loop over all queries
    "top_k_page_table_transform": {"num_rows": 4},  # a row for each of the 4 requests that `init` makes
    "block_sparse_run": {"qo_len": 128},  # two blocks
    "selective_state_update": {"nheads": 8, "ngroups": 1, "dt_softplus": True},  # of which a cache holds 384
    "fused_qk_rmsnorm_rope": {"batch_size": 1, "ppf": 2, "pph": 4, "ppw": 4},
}
# Those of the default tier: a kernel's only or largest ones, or those of a video model.
USUAL: Mapping[str, Mapping[str, int]] = {
    "mono_moe": {"seq_len": 8},
    "block_sparse_run": {"qo_len": 4096},
    "selective_state_update": {"batch_size": 256, "dt_softplus": True},
    "fused_qk_rmsnorm_rope": {"batch_size": 1},
    "fused_dit": {"batch_size": 1},
    "gdn_fused_decode": {"batch_size": 8},  # a page for each, of which `init` makes 8
    "mm_M1_16_K": {"M": 16},
}
T = TypeVar("T")


def by_part(table: Mapping[str, T], label: str) -> T | None:
    """That of the first part which the template's name has."""
    return next((value for part, value in table.items() if part in label), None)


def weakness(api: Api) -> str | None:
    """What the reference does not know, of what its API does."""
    return by_part(WEAK, f"{api.path} {api.label}")
