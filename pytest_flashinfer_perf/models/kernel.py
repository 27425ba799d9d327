"""One kernel of a step: a matrix product, an API of FlashInfer between products, or a gap that no case measures.

A kernel is made from the config alone, with the parameters that the model settles. Whether the installed FlashInfer has
such an API, and takes these sizes, is asked when the plan becomes cases (`plan.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_flashinfer_perf.models.deployment import Step
from pytest_flashinfer_perf.models.description import Dense
from pytest_flashinfer_perf.models.quantisation import BITS, COLUMNS
from pytest_flashinfer_perf.rows.step import StepKernel

NORM = "flashinfer.norm.rmsnorm"
ADD_AND_NORM = "flashinfer.norm.fused_add_rmsnorm"
ROPE = "flashinfer.rope.apply_rope_with_cos_sin_cache_inplace"
APPEND = "flashinfer.page.append_paged_kv_cache"
APPEND_LATENT = "flashinfer.page.append_paged_mla_kv_cache"
ACTIVATION = "flashinfer.activation.silu_and_mul"
SAMPLING = "flashinfer.sampling.top_k_top_p_sampling_from_logits"
# The routines that multiply weights as a checkpoint stores them.
PRODUCTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "bf16": {"mm_bf16": {}},
    "fp8": {"mm_fp8": {}, "bmm_fp8": {"batch_size": 1}},
    "fp8_blocks": {"gemm_fp8_nt_groupwise": {}},
    "nvfp4": {"mm_fp4": {"use_128x4_sf_layout": True}},
    "mxfp4": {"mm_fp4": {"use_mxfp4": True, "use_128x4_sf_layout": True}},
}

Problem = Mapping[str, Any]


def problem(routine: str, params: Mapping[str, Any]) -> Problem:
    return {"routine": routine, **params}


def called(
    name: str, problems: tuple[Problem, ...], parameters: int = 0, flops: float = 0.0, stored: str = "bf16"
) -> StepKernel:
    weight_bytes = parameters * BITS[stored] / 8
    return StepKernel(
        name=name, problems=problems, parameters=parameters, flops=flops, stored=stored, weight_bytes=weight_bytes
    )


def gap(name: str, reason: str, *, parameters: int = 0, flops: float = 0.0, stored: str = "bf16") -> StepKernel:
    """A part of the step that no case measures."""
    return replace(called(name, (), parameters, flops, stored), gap=reason)


class ProductWeights(NamedTuple):
    """A matrix [n, k] as the checkpoint stores it; only mm_bf16 adds a bias to each row."""

    n: int
    k: int
    stored: str = "bf16"
    bias: bool = False


def product(name: str, m: int, weights: ProductWeights) -> StepKernel:
    n, k, stored, bias = weights
    parameters, flops = n * k + n * bias, 2.0 * m * n * k
    if k % COLUMNS[stored]:
        return gap(name, cut(stored, k), parameters=parameters, flops=flops, stored=stored)
    added = {"bias": True} if bias and stored == "bf16" else {}
    note = "without its bias" if bias and not added else ""
    problems = (
        problem(routine, {"m": m, "n": n, "k": k, **more, **added}) for routine, more in PRODUCTS[stored].items()
    )
    return replace(called(name, tuple(problems), parameters, flops, stored), note=note)


def cut(stored: str, columns: int) -> str:
    """Why a GPU's part of quantised weights cannot be."""
    return f"a GPU has {columns} columns, which cuts the {COLUMNS[stored]} that share a scale of {stored}"


def of_heads(name: str, heads: int, m: int, weights: ProductWeights) -> StepKernel:
    """A product for each head, of weights that are bf16 when they are multiplied."""
    n, k, stored, _ = weights
    sizes = {"batch_size": heads, "m": m, "n": n, "k": k}
    return called(name, (problem("bmm_bf16", sizes),), heads * n * k, 2.0 * heads * m * n * k, stored)


def _api(name: str, api: str, sizes: Mapping[str, Any], parameters: int = 0) -> StepKernel:
    return called(name, (problem(api, sizes),), parameters)


def norm(name: str, rows: int, width: int) -> StepKernel:
    return _api(name, NORM, {"batch_size": rows, "hidden_size": width}, parameters=width)


def add_and_norm(rows: int, width: int) -> StepKernel:
    return _api("add-norm", ADD_AND_NORM, {"batch_size": rows, "hidden_size": width}, parameters=width)


def rope(heads: int, kv_heads: int, size: int, step: Step) -> StepKernel:
    """All columns of a head are rotated, also where a model rotates a part."""
    sizes = {
        "nnz": step.tokens,
        "num_q_heads_x_head_size": heads * size,
        "num_k_heads_x_head_size": kv_heads * size,
        "head_size": size,
        "rotary_dim": size,
        "max_seq_len": step.context,
    }
    return _api("rope", ROPE, sizes)


def append(kv_heads: int, size: int, step: Step) -> StepKernel:
    return _appended(APPEND, {"num_kv_heads": kv_heads, "head_dim": size}, step)


def append_latent(kv_rank: int, rope_dim: int, step: Step) -> StepKernel:
    return _appended(APPEND_LATENT, {"head_dim_ckv": kv_rank, "head_dim_kpe": rope_dim}, step)


def _appended(api: str, widths: Mapping[str, int], step: Step) -> StepKernel:
    """A token of each request, to a page of its own."""
    if step.kv_dtype != "bfloat16":
        return gap("append", f"no API that knows its answer appends to a cache of {step.kv_dtype}")
    if step.phase == "prefill":
        return gap("append", "the reference of its API goes token by token, which takes minutes for a prompt")
    pages = {"page_size": step.page_size, "num_pages": step.requests}
    return _api("append", api, {"nnz_kv": step.tokens, "batch_size": step.requests, **widths, **pages})


def activation(layer: Dense, width: int, step: Step, prefix: str) -> StepKernel:
    if not layer.gated:
        return gap(f"{prefix}activation", "no API applies an activation without a gate")
    return _api(f"{prefix}activation", ACTIVATION, {"num_tokens": step.tokens, "hidden_size": 2 * width})


def sampling(vocabulary: int, step: Step) -> StepKernel:
    """Each GPU has the logits of the whole vocabulary by then."""
    return _api("sampling", SAMPLING, {"batch_size": step.requests, "vocab_size": vocabulary})
