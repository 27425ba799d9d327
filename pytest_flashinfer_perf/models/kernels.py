"""All kernels that one GPU of a deployment runs in a step, from the description of its model.

`of_step` adds up the layers: first what all have in common, then attention of each kind, then feed-forward, dense or
with experts. kernel.py makes a single one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_flashinfer_perf.models import kernel
from pytest_flashinfer_perf.models.config_json import ConfigError
from pytest_flashinfer_perf.models.deployment import Step
from pytest_flashinfer_perf.models.description import (
    Dense,
    Description,
    Experts,
    Grouped,
    Latent,
    Layer,
    Recurrent,
)
from pytest_flashinfer_perf.models.kernel import (
    Problem,
    ProductWeights,
    add_and_norm,
    called,
    gap,
    norm,
    of_heads,
    problem,
    product,
    sampling,
)
from pytest_flashinfer_perf.models.quantisation import BITS, COLUMNS, Stored
from pytest_flashinfer_perf.rows.step import StepKernel
from pytest_flashinfer_perf.spec.presets import shared

QUANTISED = ("mm_fp8", "gemm_fp8_nt_groupwise", "mm_fp4")  # they take activations that a kernel before them quantised


ALL_REDUCE, ALL_TO_ALL = "allreduce_fusion", "moe_a2a_dispatch_combine"
MULTIPLY_BF16 = ("mm_bf16", "bmm_bf16", "cutlass_fused_moe")


def of_step(model: Description, step: Step) -> list[StepKernel]:
    """One entry for all layers that run the same."""
    if step.spread.ep > 1 and model.first(Experts) is None:
        raise ConfigError(f"{model.name} has no experts, which {step.spread.ep} GPUs could share: leave out ep")
    found: dict[Any, StepKernel] = {}
    for one in _all(model, step):
        typed = _of_type(one, model.dtype)
        same = _same(typed)
        found[same] = found[same].joined(typed) if same in found else typed
    return list(found.values())


def _same(one: StepKernel) -> tuple[Any, ...]:
    """What kernels have in common that are one entry of a step."""
    return one.name, one.gap, one.note, tuple(tuple(sorted(problem.items(), key=str)) for problem in one.problems)


def _of_type(one: StepKernel, dtype: str) -> StepKernel:
    """With weights of the config's own type, where the quantisation leaves them as they are."""
    if dtype == "bf16" or one.stored != "bf16":
        return one
    typed = replace(one, stored=dtype, weight_bytes=one.parameters * BITS[dtype] / 8)
    if not any(problem["routine"] in MULTIPLY_BF16 for problem in one.problems):
        return typed
    if dtype == "fp32":
        return replace(typed, problems=(), gap="no routine multiplies weights of float32")
    return replace(typed, note="; ".join(filter(None, (one.note, "measured in bfloat16, its weights are float16"))))


def _all(model: Description, step: Step) -> Iterator[StepKernel]:
    for layer, count in model.layers:
        for one in _of_layer(model, layer, step):
            yield one.times(count)
    yield from _around(model, step)
    yield from _between_gpus(model, step)


def _of_layer(model: Description, layer: Layer, step: Step) -> Iterator[StepKernel]:
    inner = list(_parts(model, layer, step))
    yield from inner
    quantised = sum(one.problems[0]["routine"] in QUANTISED for one in inner if one.problems)
    if quantised:
        yield gap("quantising of activations", "no routine measures it").times(quantised)


def _parts(model: Description, layer: Layer, step: Step) -> Iterator[StepKernel]:
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
    yield add_and_norm(step.tokens, hidden).times(layer.norms)


def _around(model: Description, step: Step) -> Iterator[StepKernel]:
    """The vocabulary's tables and the choice of a token; the first norm, alone of all, has nothing to add to."""
    vocabulary = -(-model.vocabulary // step.spread.tp)
    yield norm("first norm", step.tokens, model.hidden)
    table = 0 if model.tied else vocabulary * model.hidden
    yield gap("embedding", "no routine measures the lookup", parameters=table)
    yield product("lm-head", step.requests, ProductWeights(vocabulary, model.hidden))
    yield sampling(model.vocabulary, step)


def _between_gpus(model: Description, step: Step) -> Iterator[StepKernel]:
    mixers = sum(count for layer, count in model.layers if layer.mixer is not None)
    feeds = sum(count for layer, count in model.layers if layer.feed is not None)
    message = {"hidden_size": model.hidden, **({"input_dtype": "float16"} if model.dtype == "fp16" else {})}
    if step.spread.tp > 1:
        summed = {"num_tokens": step.tokens, **message, "num_gpus": step.spread.tp}
        yield called("all-reduce", (problem(ALL_REDUCE, summed),)).times(mixers + feeds)
    for layer, count in model.layers:
        if step.spread.ep > 1 and isinstance(layer.feed, Experts):
            yield _to_experts(layer.feed, message, step).times(count)


def _to_experts(layer: Experts, message: Mapping[str, Any], step: Step) -> StepKernel:
    """There and back; GPUs that share a request's tokens send a part of them each."""
    tokens = -(-step.tokens // step.spread.tp)
    chosen = {"num_experts": layer.count, "top_k": layer.chosen}
    return called(
        "all-to-all", (problem(ALL_TO_ALL, {"num_tokens": tokens, **message, **chosen, "num_gpus": step.spread.ep}),)
    )


class Coverage(NamedTuple):
    """Which part of the weights, and of the operations on them, has a case."""

    weights: float
    flops: float


def coverage(kernels: Sequence[StepKernel]) -> Coverage:
    return Coverage(_share(kernels, "weight_bytes"), _share(kernels, "flops"))


def _share(kernels: Sequence[StepKernel], of: str) -> float:
    whole = sum(getattr(one, of) for one in kernels)
    return sum(getattr(one, of) for one in kernels if not one.gap) / whole if whole else 0.0


# The kernels of attention layers of each kind, with their projections, on one GPU.

DECODE = "BatchDecodeWithPagedKVCacheWrapper"
PAGED = "BatchPrefillWithPagedKVCacheWrapper"
RAGGED = "BatchPrefillWithRaggedKVCacheWrapper"
MLA = "BatchMLAPagedAttentionWrapper"
SCAN = 6.0  # operations on each number of a state: to decay it, add to it, and read it


def grouped(layer: Grouped, hidden: int, stored: str, step: Step) -> Iterator[StepKernel]:
    here = layer.part(step.spread.tp)
    yield product("qkv", step.tokens, ProductWeights(here.qkv, hidden, stored, "qkv" in layer.biases))
    yield from _prepared(here, step)
    yield _attention(here, step)
    yield product("o", step.tokens, ProductWeights(hidden, here.out, stored, "o" in layer.biases))


def _prepared(here: Grouped, step: Step) -> Iterator[StepKernel]:
    """Queries and keys, by head or whole, normed and rotated; keys and values put into the cache."""
    size = here.head_dim
    if here.normed == 2 * size:
        yield kernel.norm("q-norm", step.tokens * here.heads, size)
        yield kernel.norm("k-norm", step.tokens * here.kv_heads, size)
    elif here.normed:
        yield kernel.norm("q-norm", step.tokens, here.heads * size)
        yield kernel.norm("k-norm", step.tokens, here.kv_heads * size)
    if here.rotated:
        yield kernel.rope(here.heads, here.kv_heads, size, step)
    yield kernel.append(here.kv_heads, size, step)


def _attention(here: Grouped, step: Step) -> StepKernel:
    seen = min(step.context, here.window or step.context)
    flops = 4.0 * step.tokens * here.heads * here.head_dim * _attended(seen, step)
    reasons = [f"a window of {seen}"] * (seen < step.context) + ["sinks"] * here.sinks
    if reasons:
        name = "attention" if seen == step.context else "window attention"
        reason = f"no routine measures attention with {' and '.join(reasons)}"
        return kernel.gap(name, reason, parameters=here.heads * here.sinks, flops=flops)
    sizes = {"num_qo_heads": here.heads, "num_kv_heads": here.kv_heads, "head_dim_qk": here.head_dim}
    cached = {**sizes, "head_dim_vo": here.head_dim, "page_size": step.page_size}
    routine = PAGED if step.phase == "prefill" else DECODE
    return called("attention", (problem(routine, {**_requests(step), **cached}),), flops=flops)


def _attended(seen: int, step: Step) -> float:
    """Tokens that a query sees: of a prompt, those before it."""
    return seen * (1 - seen / (2 * step.context)) if step.phase == "prefill" else seen


def _requests(step: Step) -> dict[str, Any]:
    lengths = {"batch_size": step.requests, "s_kv": step.context, "random_actual_seq_len": step.mixed}
    prompt = {"s_qo": step.context, "causal": True} if step.phase == "prefill" else {}
    half = {"q_dtype": "float16"} if step.kv_dtype == "float16" else {}
    return {**lengths, **prompt, **half, "kv_dtype": step.kv_dtype}


def latent(layer: Latent, hidden: int, stored: str, step: Step) -> Iterator[StepKernel]:
    """Decoding meets the cache of latents with absorbed queries; prefilling expands keys and values for each head."""
    here = layer.part(step.spread.tp)
    yield product("qkv-down", step.tokens, ProductWeights(here.down, hidden, stored))
    yield product("q-up", step.tokens, ProductWeights(here.heads * here.query, here.q_rank, stored))
    yield kernel.norm("q-norm", step.tokens, here.q_rank)
    yield kernel.norm("kv-norm", step.tokens, here.kv_rank)
    yield kernel.rope(here.heads, 1, here.rope_dim, step)
    yield kernel.append_latent(here.kv_rank, here.rope_dim, step)
    yield from (_expanded if step.phase == "prefill" else _absorbed)(here, stored, step)
    yield product("o", step.tokens, ProductWeights(hidden, here.heads * here.v_dim, stored))


def _absorbed(here: Latent, stored: str, step: Step) -> Iterator[StepKernel]:
    sizes = {"num_qo_heads": here.heads, "head_dim_ckv": here.kv_rank, "head_dim_kpe": here.rope_dim}
    asked = {**_requests(step), **sizes, "page_size": step.page_size}
    flops = 2.0 * step.tokens * here.heads * step.context * (2 * here.kv_rank + here.rope_dim)
    yield of_heads("absorb-q", here.heads, step.tokens, ProductWeights(here.kv_rank, here.nope_dim, stored))
    yield called("attention", (problem(MLA, asked),), flops=flops)
    yield of_heads("absorb-v", here.heads, step.tokens, ProductWeights(here.v_dim, here.kv_rank, stored))


def _expanded(here: Latent, stored: str, step: Step) -> Iterator[StepKernel]:
    heads = {"num_qo_heads": here.heads, "num_kv_heads": here.heads}
    asked = {**_requests(step), **heads, "head_dim_qk": here.query, "head_dim_vo": here.v_dim}
    flops = float(step.tokens * here.heads * step.context * (here.query + here.v_dim))
    wide = here.heads * (here.nope_dim + here.v_dim)
    yield product("kv-up", step.tokens, ProductWeights(wide, here.kv_rank, stored))
    yield called("attention", (problem(RAGGED, asked),), flops=flops)


def recurrent(layer: Recurrent, hidden: int, stored: str, step: Step) -> Iterator[StepKernel]:
    wide = shared(layer.width_in, step.spread.tp, f"columns of the {layer.kind} projection")
    inner = shared(layer.width_out, step.spread.tp, f"columns of the {layer.kind} output")
    yield product("state-in", step.tokens, ProductWeights(wide, hidden, stored))
    other, flops = -(-layer.other // step.spread.tp), SCAN * step.tokens * layer.state / step.spread.tp
    yield kernel.gap("scan", f"no routine measures {layer.kind}", parameters=other, flops=flops)
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
    first = "gate-up" if layer.gated else "up"
    yield product(f"{prefix}{first}", step.tokens, ProductWeights(width * (1 + layer.gated), hidden, stored))
    yield kernel.activation(layer, width, step, prefix)
    yield product(f"{prefix}down", step.tokens, ProductWeights(hidden, width, stored))


def experts(layer: Experts, hidden: int, stored: Stored, step: Step) -> Iterator[StepKernel]:
    """The router is replicated; a shared expert is a dense layer."""
    yield product("router", step.tokens, ProductWeights(layer.count, hidden, bias=layer.biases))
    if layer.shared is not None:
        yield from dense(layer.shared, hidden, stored.dense, step, "shared-")
    yield _routed(layer, hidden, stored.experts, step)
    extra = layer.count * layer.routing.biased + hidden * layer.shared_gate
    if extra:
        yield kernel.gap("routing bias and gate of the shared expert", "part of no case", parameters=extra)


def _routed(layer: Experts, hidden: int, stored: str, step: Step) -> StepKernel:
    width = shared(layer.width, step.spread.tp, "columns of an expert")
    here = shared(layer.count, step.spread.ep, "experts")
    matrices = 3 if layer.gated else 2
    biases = (2 * layer.width + hidden) * layer.biases
    parameters = (matrices * hidden * layer.width + biases) // step.spread.tp * here
    flops = 2.0 * step.routed_tokens * layer.chosen * matrices * hidden * width / step.spread.ep
    uneven = [columns for columns in (hidden, width) if columns % COLUMNS[stored]]
    if uneven and stored in FP4:
        return kernel.gap("experts", kernel.cut(stored, uneven[0]), parameters=parameters, flops=flops, stored=stored)
    routed = called("experts", tuple(_calls(layer, hidden, stored, step)), parameters, flops, stored)
    return replace(routed, note="without the biases of the experts" if layer.biases else "")


def _calls(layer: Experts, hidden: int, stored: str, step: Step) -> Iterator[Problem]:
    if stored in VARIANTS:
        yield problem(CUTLASS, {**_sizes(layer, hidden, layer.width, step), **_cutlass(stored, step)})
    if stored in TRTLLM:
        routine, more = TRTLLM[stored]
        width = layer.width // step.spread.tp
        yield problem(routine, {**_sizes(layer, hidden, width, step), **_trtllm(layer, step), **more})


def _sizes(layer: Experts, hidden: int, width: int, step: Step) -> dict[str, Any]:
    return {
        "num_tokens": step.routed_tokens,
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_experts": layer.count,
        "top_k": layer.chosen,
        "activation_type": layer.activation,
    }


def _cutlass(stored: str, step: Step) -> dict[str, Any]:
    """It takes the experts that were chosen, however they were."""
    return {"cutlass_variant": VARIANTS[stored], "tp_size": step.spread.tp, "ep_size": step.spread.ep}


def _trtllm(layer: Experts, step: Step) -> dict[str, Any]:
    routing = layer.routing
    scaling = {} if routing.scaling is None else {"routed_scaling_factor": routing.scaling}
    return {
        "local_num_experts": layer.count // step.spread.ep,
        "routing_method": routing.method,
        "n_group": routing.groups,
        "topk_group": routing.groups_chosen,
        "use_routing_bias": routing.biased,
        **scaling,
    }
