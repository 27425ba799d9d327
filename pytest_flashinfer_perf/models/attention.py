"""The kernels of attention layers of each kind, with their projections, on one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_flashinfer_perf.models import kernel
from pytest_flashinfer_perf.models.deployment import Step
from pytest_flashinfer_perf.models.description import Grouped, Latent, Recurrent
from pytest_flashinfer_perf.models.kernel import ProductWeights, called, of_heads, problem, product
from pytest_flashinfer_perf.rows.step import StepKernel
from pytest_flashinfer_perf.spec.presets import shared

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
