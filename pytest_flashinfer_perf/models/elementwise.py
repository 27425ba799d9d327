"""The kernels between a step's products that are APIs of FlashInfer: norms, RoPE, cache appends, ..."""

from __future__ import annotations

from typing import Any

from pytest_flashinfer_perf.models.description import Dense
from pytest_flashinfer_perf.models.kernel import Call, Kernel
from pytest_flashinfer_perf.models.step import Step

NORM = "flashinfer.norm.rmsnorm"
ADD_AND_NORM = "flashinfer.norm.fused_add_rmsnorm"
ROPE = "flashinfer.rope.apply_rope_with_cos_sin_cache_inplace"
APPEND = "flashinfer.page.append_paged_kv_cache"
APPEND_LATENT = "flashinfer.page.append_paged_mla_kv_cache"
ACTIVATION = "flashinfer.activation.silu_and_mul"
SAMPLING = "flashinfer.sampling.top_k_top_p_sampling_from_logits"


def norm(name: str, rows: int, width: int) -> Kernel:
    return _called(name, NORM, {"batch_size": rows, "hidden_size": width}, parameters=width)


def add_and_norm(rows: int, width: int) -> Kernel:
    return _called("add-norm", ADD_AND_NORM, {"batch_size": rows, "hidden_size": width}, parameters=width)


def rope(heads: int, kv_heads: int, size: int, step: Step) -> Kernel:
    """All columns of a head are rotated, also where a model rotates a part."""
    sizes = {
        "nnz": step.tokens,
        "num_q_heads_x_head_size": heads * size,
        "num_k_heads_x_head_size": kv_heads * size,
        "head_size": size,
        "rotary_dim": size,
        "max_seq_len": step.context,
    }
    return _called("rope", ROPE, sizes)


def append(kv_heads: int, size: int, step: Step) -> Kernel:
    return _appended(APPEND, {"num_kv_heads": kv_heads, "head_dim": size}, step)


def append_latent(kv_rank: int, rope_dim: int, step: Step) -> Kernel:
    return _appended(APPEND_LATENT, {"head_dim_ckv": kv_rank, "head_dim_kpe": rope_dim}, step)


def _appended(api: str, widths: dict[str, int], step: Step) -> Kernel:
    """A token of each request, to a page of its own."""
    if step.kv_dtype != "bfloat16":
        return Kernel.gap_of("append", f"no API that knows its answer appends to a cache of {step.kv_dtype}")
    if step.phase == "prefill":
        return Kernel.gap_of("append", "the reference of its API goes token by token, which takes minutes for a prompt")
    pages = {"page_size": step.page_size, "num_pages": step.requests}
    return _called("append", api, {"nnz_kv": step.tokens, "batch_size": step.requests, **widths, **pages})


def activation(layer: Dense, width: int, step: Step, prefix: str) -> Kernel:
    if not layer.gated:
        return Kernel.gap_of(f"{prefix}activation", "no API applies an activation without a gate")
    return _called(f"{prefix}activation", ACTIVATION, {"num_tokens": step.tokens, "hidden_size": 2 * width})


def sampling(vocabulary: int, step: Step) -> Kernel:
    """Each GPU has the logits of the whole vocabulary by then."""
    return _called("sampling", SAMPLING, {"batch_size": step.requests, "vocab_size": vocabulary})


def _called(name: str, api: str, sizes: dict[str, Any], parameters: int = 0) -> Kernel:
    return Kernel.called(name, (Call(api, sizes),), parameters, 0.0)
