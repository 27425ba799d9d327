"""All kernels that one GPU of a deployment runs in a step, from the description of its model.

`of_step` adds up the layers: first what all have in common, then attention of each kind, then feed-forward, dense or
with experts. What makes a single kernel comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_flashinfer_perf.extensions.models.config_json import ConfigError
from pytest_flashinfer_perf.extensions.models.deployment import Step
from pytest_flashinfer_perf.extensions.models.description import (
    Dense,
    Description,
    Experts,
    Grouped,
    Layer,
    Recurrent,
)
from pytest_flashinfer_perf.extensions.models.quantisation import BITS, COLUMNS, Stored
from pytest_flashinfer_perf.extensions.models.step import StepKernel
from pytest_flashinfer_perf.routines.published_models import Latent
from pytest_flashinfer_perf.spec.presets import shared

PARTS_OF_A_LAYER = 2  # what mixes tokens, and what follows
QUANTISED = ("mm_fp8", "gemm_fp8_nt_groupwise", "mm_fp4")  # they take activations that a kernel before them quantised


def of_step(model: Description, step: Step) -> list[StepKernel]:
    """The kernels of a step; one entry for all layers that run the same."""
    if step.spread.ep > 1 and model.first(Experts) is None:
        raise ConfigError(f"{model.name} has no experts, which {step.spread.ep} GPUs could share: leave out ep")
    kernels: dict[Any, StepKernel] = {}
    for one in _all(model, step):
        problems = tuple(tuple(sorted(problem.items(), key=str)) for problem in one.problems)
        key = (one.name, one.gap, problems)
        kernels[key] = kernels[key].joined(one) if key in kernels else one
    return list(kernels.values())


def _all(model: Description, step: Step) -> Iterator[StepKernel]:
    for layer, count in model.layers:
        inner = list(_of_layer(model, layer, step))
        yield from (one.times(count) for one in inner)
        quantised = sum(one.problems[0]["routine"] in QUANTISED for one in inner if one.problems)
        if quantised:
            yield gap("quantising of activations", "no routine measures it").times(count * quantised)
    yield from _around(model, step)
    yield from _between_gpus(model, step)


def _between_gpus(model: Description, step: Step) -> Iterator[StepKernel]:
    parts = PARTS_OF_A_LAYER * sum(count for _, count in model.layers)
    if step.spread.tp > 1:
        summed = {"num_tokens": step.tokens, "hidden_size": model.hidden, "num_gpus": step.spread.tp}
        yield called("all-reduce", ({"routine": "allreduce_fusion", **summed},)).times(parts)
    for layer, count in model.layers:
        if step.spread.ep > 1 and isinstance(layer.feed, Experts):
            yield _to_experts(layer.feed, model.hidden, step).times(count)


def _to_experts(layer: Experts, hidden: int, step: Step) -> StepKernel:
    """There and back; GPUs that share a request's tokens send a part of them each."""
    sizes = {"num_tokens": -(-step.tokens // step.spread.tp), "hidden_size": hidden, "num_gpus": step.spread.ep}
    chosen = {"num_experts": layer.count, "top_k": layer.chosen}
    return called("all-to-all", ({"routine": "moe_a2a_dispatch_combine", **sizes, **chosen},))


def _of_layer(model: Description, layer: Layer, step: Step) -> Iterator[StepKernel]:
    hidden, stored = model.hidden, layer.stored
    match layer.mixer:
        case Grouped():
            yield from grouped(layer.mixer, hidden, stored.mixer, step)
        case Latent():
            yield from latent(layer.mixer, hidden, stored.mixer, step)
        case Recurrent():
            yield from recurrent(layer.mixer, hidden, stored.mixer, step)
    match layer.feed:
        case Dense():
            yield from dense(layer.feed, hidden, stored.dense, step)
        case Experts():
            yield from experts(layer.feed, hidden, stored, step)
    kind = GEMMA_ADD_AND_NORM if model.gemma else ADD_AND_NORM
    yield norm("add-norm", step.tokens, hidden, kind).times(PARTS_OF_A_LAYER)
    if model.gemma:
        yield norm("post-norm", step.tokens, hidden, GEMMA_NORM).times(PARTS_OF_A_LAYER)


def _around(model: Description, step: Step) -> Iterator[StepKernel]:
    """The vocabulary's tables and the choice of a token; the first norm, alone of all, has nothing to add to."""
    vocabulary = -(-model.vocabulary // step.spread.tp)
    yield norm("first norm", step.tokens, model.hidden, GEMMA_NORM if model.gemma else NORM)
    table = 0 if model.tied else vocabulary * model.hidden
    yield gap("embedding", "no routine measures the lookup", parameters=table)
    yield product("lm-head", step.requests, ProductWeights(vocabulary, model.hidden))
    # Each GPU has the logits of the whole vocabulary by then.
    logits = {"batch_size": step.requests, "vocab_size": model.vocabulary}
    yield of_api("sampling", SAMPLING, logits)


def covered(kernels: Sequence[StepKernel]) -> float:
    """The share of the weights that has a case."""
    whole = sum(one.weight_bytes for one in kernels)
    return sum(one.weight_bytes for one in kernels if not one.gap) / whole if whole else 0.0


# The kernels of attention layers of each kind, with their projections, on one GPU.

DECODE = "BatchDecodeWithPagedKVCacheWrapper"
PAGED = "BatchPrefillWithPagedKVCacheWrapper"
RAGGED = "BatchPrefillWithRaggedKVCacheWrapper"
MLA = "BatchMLAPagedAttentionWrapper"


def grouped(layer: Grouped, hidden: int, stored: str, step: Step) -> Iterator[StepKernel]:
    here = layer.part(step.spread.tp)
    yield product("qkv", step.tokens, ProductWeights(here.qkv, hidden, stored, layer.biased))
    # Queries and keys are normed, by head or whole, and rotated; keys and values are put into the cache.
    size = here.head_dim
    for name, heads in (("q-norm", here.heads), ("k-norm", here.kv_heads)):
        if here.normed == 2 * size:
            yield norm(name, step.tokens * heads, size)
        elif here.normed:
            yield norm(name, step.tokens, heads * size)
    if here.rotated:
        yield rope(here.heads, here.kv_heads, size, step)
    yield append(APPEND, {"num_kv_heads": here.kv_heads, "head_dim": size}, step)
    yield _attention(here, step)
    yield product("o", step.tokens, ProductWeights(hidden, here.out, stored, layer.out_biased))


def _attention(here: Grouped, step: Step) -> StepKernel:
    reach = min(step.context, here.window or step.context)
    reasons = [f"a window of {reach}"] * (reach < step.context) + ["sinks"] * here.sinks
    if reasons:
        name = "attention" if reach == step.context else "window attention"
        reason = f"no routine measures attention with {' and '.join(reasons)}"
        return gap(name, reason, parameters=here.heads * here.sinks)
    sizes = {"num_qo_heads": here.heads, "num_kv_heads": here.kv_heads, "head_dim_qk": here.head_dim}
    cached = {**_requests(step), **sizes, "head_dim_vo": here.head_dim, "page_size": step.page_size}
    problem = {"routine": PAGED if step.phase == "prefill" else DECODE, **cached}
    return called("attention", (problem,))


def _requests(step: Step) -> dict[str, Any]:
    lengths = {"batch_size": step.requests, "s_kv": step.context}
    prompt = {"s_qo": step.context, "causal": True} if step.phase == "prefill" else {}
    return {**lengths, **prompt, "kv_dtype": step.kv_dtype}


def latent(layer: Latent, hidden: int, stored: str, step: Step) -> Iterator[StepKernel]:
    """Decoding meets the cache of latents with absorbed queries; prefilling expands keys and values for each head."""
    here = layer.part(step.spread.tp)
    yield product("qkv-down", step.tokens, ProductWeights(here.down, hidden, stored))
    yield product("q-up", step.tokens, ProductWeights(here.heads * here.query, here.q_rank or hidden, stored))
    if here.q_rank:
        yield norm("q-norm", step.tokens, here.q_rank)
    yield norm("kv-norm", step.tokens, here.kv_rank)
    yield rope(here.heads, 1, here.rope_dim, step)
    yield append(APPEND_LATENT, {"head_dim_ckv": here.kv_rank, "head_dim_kpe": here.rope_dim}, step)
    yield from (_expanded if step.phase == "prefill" else _absorbed)(here, stored, step)
    yield product("o", step.tokens, ProductWeights(hidden, here.heads * here.v_dim, stored))


def _absorbed(here: Latent, stored: str, step: Step) -> Iterator[StepKernel]:
    sizes = {"num_qo_heads": here.heads, "head_dim_ckv": here.kv_rank, "head_dim_kpe": here.rope_dim}
    problem = {"routine": MLA, **_requests(step), **sizes, "page_size": step.page_size}
    yield of_heads("absorb-q", here.heads, step.tokens, ProductWeights(here.kv_rank, here.nope_dim, stored))
    yield called("attention", (problem,))
    yield of_heads("absorb-v", here.heads, step.tokens, ProductWeights(here.v_dim, here.kv_rank, stored))


def _expanded(here: Latent, stored: str, step: Step) -> Iterator[StepKernel]:
    heads = {"num_qo_heads": here.heads, "num_kv_heads": here.heads}
    problem = {"routine": RAGGED, **_requests(step), **heads, "head_dim_qk": here.query, "head_dim_vo": here.v_dim}
    wide = here.heads * (here.nope_dim + here.v_dim)
    yield product("kv-up", step.tokens, ProductWeights(wide, here.kv_rank, stored))
    yield called("attention", (problem,))


def recurrent(layer: Recurrent, hidden: int, stored: str, step: Step) -> Iterator[StepKernel]:
    wide = shared(layer.width_in, step.spread.tp, "columns of the projection of a gated delta net")
    inner = shared(layer.width_out, step.spread.tp, "columns of the output of a gated delta net")
    yield product("state-in", step.tokens, ProductWeights(wide, hidden, stored))
    yield gap("scan", "no routine measures gated delta net", parameters=-(-layer.other // step.spread.tp))
    yield product("state-out", step.tokens, ProductWeights(hidden, inner, stored))


# The kernels of feed-forward layers, dense or with experts, on one GPU.

FP4 = ("nvfp4", "mxfp4")
CUTLASS = "cutlass_fused_moe"
VARIANTS = {"bf16": "base", "fp8": "fp8", "fp8_blocks": "deepseek_fp8_block_scale", "nvfp4": "nvfp4"}
TRTLLM: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "fp8": ("trtllm_fp8_per_tensor_scale_moe", {}),
    "fp8_blocks": ("trtllm_fp8_block_scale_moe", {}),
    "nvfp4": ("trtllm_fp4_block_scale_moe", {"fp4_mode": "nvfp4"}),
    "mxfp4": ("trtllm_fp4_block_scale_moe", {"fp4_mode": "mxfp4_bf16"}),
}


def dense(layer: Dense, hidden: int, stored: str, step: Step, prefix: str = "") -> Iterator[StepKernel]:
    width = shared(layer.width, step.spread.tp, "columns of a feed-forward layer")
    yield product(f"{prefix}gate-up", step.tokens, ProductWeights(2 * width, hidden, stored))
    yield activation(layer, width, step, prefix)
    yield product(f"{prefix}down", step.tokens, ProductWeights(hidden, width, stored))


def experts(layer: Experts, hidden: int, stored: Stored, step: Step) -> Iterator[StepKernel]:
    """The router is replicated; a shared expert is a dense layer."""
    yield product("router", step.tokens, ProductWeights(layer.count, hidden, bias=layer.biases))
    if layer.shared is not None:
        yield from dense(layer.shared, hidden, stored.dense, step, "shared-")
    yield _routed(layer, hidden, stored.experts, step)
    extra = layer.count * layer.routing.biased + hidden * layer.shared_gate
    if extra:
        yield gap("routing bias and gate of the shared expert", "part of no case", parameters=extra)


def _routed(layer: Experts, hidden: int, stored: str, step: Step) -> StepKernel:
    width = shared(layer.width, step.spread.tp, "columns of an expert")
    here = shared(layer.count, step.spread.ep, "experts")
    biases = (2 * layer.width + hidden) * layer.biases
    parameters = (3 * hidden * layer.width + biases) // step.spread.tp * here
    uneven = [columns for columns in (hidden, width) if columns % COLUMNS[stored]]
    if uneven and stored in FP4:
        return gap("experts", cut(stored, uneven[0]), parameters=parameters, stored=stored)
    return called("experts", tuple(_calls(layer, hidden, stored, step)), parameters, stored)


def _calls(layer: Experts, hidden: int, stored: str, step: Step) -> Iterator[Problem]:
    """CUTLASS's takes the experts that were chosen, however they were; TRT-LLM's chooses them."""
    whole = {"num_tokens": step.routed_tokens, "hidden_size": hidden, "intermediate_size": layer.width}
    sizes = {**whole, "num_experts": layer.count, "top_k": layer.chosen}
    if stored in VARIANTS:
        spread = {"tp_size": step.spread.tp, "ep_size": step.spread.ep}
        yield {"routine": CUTLASS, **sizes, "cutlass_variant": VARIANTS[stored], **spread}
    if stored in TRTLLM:
        routine, more = TRTLLM[stored]
        here = {"intermediate_size": layer.width // step.spread.tp, "local_num_experts": layer.count // step.spread.ep}
        yield {"routine": routine, **sizes, **here, **layer.routing.parameters, **more}


# One kernel: a matrix product, an API of FlashInfer between products, or a gap that no case measures. It is made from
# the config alone; whether the installed FlashInfer has such an API, and takes these sizes, is asked by plan.py.

NORM = "flashinfer.norm.rmsnorm"
ADD_AND_NORM = "flashinfer.norm.fused_add_rmsnorm"
GEMMA_NORM = "flashinfer.norm.gemma_rmsnorm"
GEMMA_ADD_AND_NORM = "flashinfer.norm.gemma_fused_add_rmsnorm"
ROPE = "flashinfer.rope.apply_rope_with_cos_sin_cache_inplace"
APPEND = "flashinfer.page.append_paged_kv_cache"
APPEND_LATENT = "flashinfer.page.append_paged_mla_kv_cache"
ACTIVATIONS = "flashinfer.activation"
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


def called(name: str, problems: tuple[Problem, ...], parameters: int = 0, stored: str = "bf16") -> StepKernel:
    return StepKernel(name=name, problems=problems, weight_bytes=parameters * BITS[stored] / 8)


def gap(name: str, reason: str, *, parameters: int = 0, stored: str = "bf16") -> StepKernel:
    """A part of the step that no case measures."""
    return replace(called(name, (), parameters, stored), gap=reason)


class ProductWeights(NamedTuple):
    """A matrix [n, k] as the checkpoint stores it; only mm_bf16 adds a bias to each row."""

    n: int
    k: int
    stored: str = "bf16"
    bias: bool = False


def product(name: str, m: int, weights: ProductWeights) -> StepKernel:
    n, k, stored, bias = weights
    parameters = n * k + n * bias
    if k % COLUMNS[stored]:
        return gap(name, cut(stored, k), parameters=parameters, stored=stored)
    added = {"bias": True} if bias and stored == "bf16" else {}
    sizes = {"m": m, "n": n, "k": k, **added}
    problems = tuple({"routine": routine, **sizes, **more} for routine, more in PRODUCTS[stored].items())
    return called(name, problems, parameters, stored)


def cut(stored: str, columns: int) -> str:
    """Why a GPU's part of quantised weights cannot be."""
    return f"a GPU has {columns} columns, which cuts the {COLUMNS[stored]} that share a scale of {stored}"


def of_heads(name: str, heads: int, m: int, weights: ProductWeights) -> StepKernel:
    """A product for each head, of weights that are bf16 when they are multiplied."""
    n, k, stored, _ = weights
    problem = {"routine": "bmm_bf16", "batch_size": heads, "m": m, "n": n, "k": k}
    return called(name, (problem,), heads * n * k, stored)


def of_api(name: str, api: str, sizes: Mapping[str, Any], parameters: int = 0) -> StepKernel:
    return called(name, ({"routine": api, **sizes},), parameters)


def norm(name: str, rows: int, width: int, kind: str = NORM) -> StepKernel:
    return of_api(name, kind, {"batch_size": rows, "hidden_size": width}, parameters=width)


def rope(heads: int, kv_heads: int, size: int, step: Step) -> StepKernel:
    """The rotation of queries and keys: of all columns of a head, also where a model rotates a part."""
    sizes = {
        "nnz": step.tokens,
        "num_q_heads_x_head_size": heads * size,
        "num_k_heads_x_head_size": kv_heads * size,
        "head_size": size,
        "rotary_dim": size,
        "max_seq_len": step.context,
    }
    return of_api("rope", ROPE, sizes)


def append(api: str, widths: Mapping[str, int], step: Step) -> StepKernel:
    """A token of each request, to a page of its own."""
    if step.kv_dtype != "bfloat16":
        return gap("append", f"no API that knows its answer appends to a cache of {step.kv_dtype}")
    if step.phase == "prefill":
        return gap("append", "the reference of its API goes token by token, which takes minutes for a prompt")
    pages = {"page_size": step.page_size, "num_pages": step.requests}
    return of_api("append", api, {"nnz_kv": step.tokens, "batch_size": step.requests, **widths, **pages})


def activation(layer: Dense, width: int, step: Step, prefix: str) -> StepKernel:
    sizes = {"num_tokens": step.tokens, "hidden_size": 2 * width}
    return of_api(f"{prefix}activation", f"{ACTIVATIONS}.{layer.activation}", sizes)
