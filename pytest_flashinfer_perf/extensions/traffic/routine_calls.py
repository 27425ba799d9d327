"""The calls that routines of the suite measure: attention with its recorded lengths, products, and experts.

Each function reads one API's arguments; `ROUTINES` lists them by the API's name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pytest_flashinfer_perf.extensions.traffic.problem import (
    ATTENTION_S,
    BYTES,
    CallArguments,
    Effort,
    NoCaseError,
    PosedProblem,
    posed,
)
from pytest_flashinfer_perf.routines._offsets import as_list

DECODE = "BatchDecodeWithPagedKVCacheWrapper"
PAGED = "BatchPrefillWithPagedKVCacheWrapper"
RAGGED = "BatchPrefillWithRaggedKVCacheWrapper"
MLA = "BatchMLAPagedAttentionWrapper"
NATIVE = "trtllm-native"
Lengths = Sequence[int]
VARIANTS = {  # arguments, and what attention becomes by them
    "logits_soft_cap": "a cap of its logits",
    **dict.fromkeys(("custom_mask", "packed_custom_mask", "mask"), "a mask of its own"),
    "sinks": "sinks",
    **dict.fromkeys(("jit_args", "args"), "a kernel of its own"),  # BatchAttentionWithAttentionSinkWrapper's is one
    **dict.fromkeys(("sparse_mla_top_k", "enable_block_sparse_attention"), "keys that it chooses"),
    "skip_softmax_threshold_scale_factor": "keys that it skips",
    "cp_world": "keys of other GPUs",
    "deprecated_positional_args": "arguments in the order of an older release",
}


def _attention(x: CallArguments, routine: str, lengths: tuple[Lengths, Lengths], sizes: dict[str, Any],
               backend: str = "") -> PosedProblem:  # fmt: skip
    """Any attention: `sizes` are the parameters beside lengths and types. Where the program left the choice to
    FlashInfer, so does the case, if its routine has `auto`: another release may choose another backend.
    """
    _refuse_variants(x)
    q, kv = lengths
    if len(q) != len(kv) or not kv or not max(kv) or any(of_q > of_kv for of_q, of_kv in zip(q, kv, strict=True)):
        raise NoCaseError("its lengths do not fit together: a query has to be the end of its keys")
    q_dtype = x.dtype("q", "query", "q_nope", "q_data_type")
    kv_dtype = x.dtype("paged_kv_cache", "kv_cache", "k", "ckv_cache", "kv_data_type")
    params = {"batch_size": len(kv), "s_qo": max(q), "s_kv": max(kv), "actual_seq_lens_kv": as_list(kv), **sizes}
    params |= {"q_dtype": q_dtype, "kv_dtype": kv_dtype, "return_lse": bool(x.value("return_lse"))}
    if routine in (PAGED, RAGGED):
        params["actual_seq_lens_q"] = as_list(q)
    heads = sizes["num_qo_heads"]
    qk, vo, token = _widths(params)
    causal = params.get("causal") or routine in (DECODE, MLA)
    pairs = sum(of_q * of_kv - causal * of_q * (of_q - 1) // 2 for of_q, of_kv in zip(q, kv, strict=True))
    nbytes = sum(kv) * token * BYTES.get(kv_dtype, 1) + 2 * sum(q) * heads * (qk + vo)
    return posed(x, routine, params, Effort(nbytes, 2.0 * pairs * heads * (qk + vo), ATTENTION_S), backend)


def _widths(p: dict[str, Any]) -> tuple[int, int, int]:
    """The columns of a query head, of an output's, and the elements that are cached of a token."""
    if "head_dim_ckv" in p:
        cached = p["head_dim_ckv"] + p["head_dim_kpe"]
        return cached, p["head_dim_ckv"], cached
    qk, vo = p["head_dim_qk"], p.get("head_dim_vo") or p["head_dim_qk"]
    return qk, vo, p["num_kv_heads"] * (qk + vo)


def _refuse_variants(x: CallArguments) -> None:
    """Raise NoCaseError for variants of attention that no routine has and that change its time."""
    variants = [sentence for name, sentence in VARIANTS.items() if x.all.get(name)]
    variants += ["a window"] if (x.value("window_left", -1) or 0) >= 0 and "window_left" in x.all else []
    variants += ["positions that it encodes"] if x.value("pos_encoding_mode", "NONE") != "NONE" else []
    if variants:
        raise NoCaseError(f"no routine measures attention with {' and '.join(dict.fromkeys(variants))}")


def _heads(x: CallArguments, *width: str) -> dict[str, Any]:
    return {name: x.number(name) for name in ("num_qo_heads", "num_kv_heads")} | {"head_dim_qk": x.number(*width)}


def _paged(x: CallArguments, indptr: str, last: str) -> list[int]:
    """The tokens of each request, from its pages and those of its last page."""
    page, pages, lasts = x.number("page_size"), x.numbers(indptr), x.numbers(last)
    if len(pages) != len(lasts):
        raise NoCaseError(f"{indptr} and {last} are of different requests")
    return [max(0, (count - 1) * page + rest) if count else 0 for count, rest in zip(pages, lasts, strict=True)]


def _decode(x: CallArguments) -> PosedProblem:
    """Padding, which graphs of fixed batch sizes have, is a request of one token."""
    kv = [max(1, length) for length in _paged(x, "indptr", "last_page_len")]
    sizes = {**_heads(x, "head_dim"), "page_size": x.number("page_size")}
    q = x.shape("q")[0] // len(kv)
    requested = x.value("backend", "auto")
    cores = bool(x.value("use_tensor_cores"))
    backend = {"fa2": "fa2_tc" if cores else "fa2", "auto": "auto" if cores else "fa2"}.get(requested, requested)
    return _attention(x, DECODE, ([q] * len(kv), [max(q, length) for length in kv]), sizes, backend)


def _prefill_paged(x: CallArguments) -> PosedProblem:
    kv = _paged(x, "paged_kv_indptr", "paged_kv_last_page_len")
    sizes = {**_heads(x, "head_dim_qk"), "page_size": x.number("page_size"), "causal": bool(x.value("causal"))}
    return _attention(x, PAGED, (x.numbers("qo_indptr"), kv), sizes, x.value("backend", "auto"))


def _prefill_ragged(x: CallArguments) -> PosedProblem:
    sizes = {**_heads(x, "head_dim_qk"), "causal": bool(x.value("causal"))}
    if "head_dim_vo" in x.all:
        sizes["head_dim_vo"] = x.number("head_dim_vo")
    return _attention(x, RAGGED, (x.numbers("qo_indptr"), x.numbers("kv_indptr")), sizes, x.value("backend", "auto"))


def _mla(x: CallArguments) -> PosedProblem:
    q, kv = x.numbers("qo_indptr"), x.numbers("kv_len_arr")
    if len(set(q)) > 1:
        raise NoCaseError("no routine measures MLA with queries of different lengths")
    sizes = {name: x.number(name) for name in ("head_dim_ckv", "head_dim_kpe", "page_size")}
    sizes["num_qo_heads"] = x.number("num_heads")
    kv = [max(of_q, of_kv) for of_q, of_kv in zip(q, kv, strict=True)]
    return _attention(x, MLA, (q, kv), sizes, x.value("backend", "auto"))


def _cached(x: CallArguments) -> dict[str, Any]:
    """The sizes of a cache [pages, 2, KV heads, page, dim], or of two without the 2; HND unless the call says NHD."""
    cache, (_, heads, width) = x.shape("kv_cache"), x.shape("query")
    kv_heads, page = cache[-3:-1] if x.value("kv_layout", "HND") == "HND" else cache[-3:-1][::-1]
    return {"num_qo_heads": heads, "num_kv_heads": kv_heads, "head_dim_qk": width, "page_size": page}


def _native_decode(x: CallArguments) -> PosedProblem:
    lengths = x.numbers("seq_lens")
    q = x.shape("query")[0] // len(lengths)
    if x.has("cum_seq_lens_q") and set(x.numbers("cum_seq_lens_q")) != {q}:
        raise NoCaseError("no routine measures decoding with queries of different lengths")
    return _attention(x, DECODE, ([q] * len(lengths), [max(q, one) for one in lengths]), _cached(x), NATIVE)


def _native_prefill(x: CallArguments) -> PosedProblem:
    sizes = {**_cached(x), "causal": x.value("causal", True)}
    return _attention(x, PAGED, (x.numbers("cum_seq_lens_q"), x.numbers("seq_lens")), sizes, NATIVE)


def _native_mla(x: CallArguments) -> PosedProblem:
    (_, q, heads, _), lengths = x.shape("query"), x.numbers("seq_lens")
    sizes = {"head_dim_ckv": x.number("kv_lora_rank"), "head_dim_kpe": x.number("qk_rope_head_dim")}
    sizes |= {"page_size": x.shape("kv_cache")[-2], "num_qo_heads": heads}
    return _attention(x, MLA, ([q] * len(lengths), [max(q, one) for one in lengths]), sizes, NATIVE)


def _product(x: CallArguments, routine: str, usual: str, names: tuple[str, str] = ("a", "b")) -> PosedProblem:
    """Activations [batch, m, k] and weights of as many columns, in whatever order they are stored; FP4 has two in one
    byte.
    """
    types = [x.dtype(name) for name in names]
    if routine.endswith("_bf16") and types != ["bfloat16"] * 2:
        raise NoCaseError(f"{routine} is measured with operands of bfloat16, not of {' and '.join(types)}")
    first, second = (x.shape(name) for name in names)
    packed = 2 if routine == "mm_fp4" else 1
    *batch, m, k = first
    n = functools.reduce(int.__mul__, second) // (k * (batch[0] if batch else 1))
    params: dict[str, Any] = {"m": m, "n": n, "k": k * packed, **({"batch_size": batch[0]} if batch else {})}
    params |= {"out_dtype": x.dtype("out_dtype", "dtype", "out") if _says_type(x) else "bfloat16"}
    if routine in ("mm_fp8", "bmm_fp8", "gemm_fp8_nt_groupwise"):
        params |= dict(zip(("input_dtype", "mat2_dtype"), types, strict=True))
    params |= {"bias": True} if x.has("bias") else {}
    if routine == "mm_fp4":
        params |= {"use_mxfp4": not x.value("use_nvfp4", True), "use_128x4_sf_layout": not x.value("use_8x4_sf_layout")}
    if routine == "gemm_fp8_nt_groupwise":
        params |= {name: value for name in ("scale_major_mode", "mma_sm") if (value := x.value(name)) is not None}
    effort = Effort(x.nbytes + 2 * m * n, 2.0 * m * n * k * packed * (batch[0] if batch else 1))
    return posed(x, routine, params, effort, x.value("backend") or usual)


def _says_type(x: CallArguments) -> bool:
    return x.has("out") or any(isinstance(x.all.get(name), dict) for name in ("out_dtype", "dtype"))


def _experts(x: CallArguments) -> PosedProblem:
    (tokens, hidden), (_, top_k) = x.shape("input"), x.shape("token_selected_experts")
    first, second = x.shape("fc1_expert_weights"), x.shape("fc2_expert_weights")
    in_fp8 = "deepseek_fp8_block_scale" if x.value("use_deepseek_fp8_block_scale") else "fp8"
    stored = {"fp8_e4m3": (in_fp8, 1), "int64": ("nvfp4", 16), "bfloat16": ("base", 1), "float16": ("base", 1)}
    dtype = x.dtype("fc1_expert_weights")
    if dtype not in stored:
        raise NoCaseError(f"no routine measures experts that are stored as {dtype}")
    variant, packed = stored[dtype]
    alone = {"tp_size": 1, "tp_rank": 0, "ep_size": 1, "ep_rank": 0}
    ranks = {name: x.value(name, usual) for name, usual in alone.items()}
    params: dict[str, Any] = {"num_tokens": tokens, "hidden_size": second[1], "top_k": top_k, **ranks}
    params |= {"cutlass_variant": variant, "num_experts": first[0] * ranks["ep_size"]}
    params |= {"intermediate_size": second[2] * packed * ranks["tp_size"]}
    params |= {"activation_type": x.value("activation_type", "Swiglu"), "input_dtype": x.dtype("output_dtype")}
    counts = x.numbers("token_selected_experts")
    counts += [0] * (params["num_experts"] - len(counts))
    used = sum(count > 0 for count in counts) / len(counts)
    chosen = tokens * top_k / ranks["ep_size"]
    matrices = 6.0 if first[1] != second[2] else 4.0
    effort = Effort(used * x.nbytes, matrices * chosen * hidden * second[2] * packed)
    return posed(x, "cutlass_fused_moe", {**params, "expert_counts": as_list(counts)}, effort, "cutlass")


Reader = Callable[[CallArguments], PosedProblem]
ROUTINES: dict[str, Reader] = {
    f"{DECODE}.run": _decode,
    f"{PAGED}.run": _prefill_paged,
    f"{RAGGED}.run": _prefill_ragged,
    f"{MLA}.run": _mla,
    "trtllm_batch_decode_with_kv_cache": _native_decode,
    "trtllm_batch_context_with_kv_cache": _native_prefill,
    "trtllm_batch_decode_with_kv_cache_mla": _native_mla,
    "cutlass_fused_moe": _experts,
    # With the backend that each takes where the program names none.
    "mm_bf16": functools.partial(_product, routine="mm_bf16", usual="cudnn"),
    "mm_fp8": functools.partial(_product, routine="mm_fp8", usual="trtllm_low_latency"),
    "mm_fp4": functools.partial(_product, routine="mm_fp4", usual="auto"),
    "bmm_bf16": functools.partial(_product, routine="bmm_bf16", usual="cudnn", names=("A", "B")),
    "bmm_fp8": functools.partial(_product, routine="bmm_fp8", usual="cublas", names=("A", "B")),
    "gemm_fp8_nt_groupwise": functools.partial(_product, routine="gemm_fp8_nt_groupwise", usual="cutlass"),
}
