"""The kernels of attention layers of each kind, with their projections, on one GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_flashinfer_perf.models import elementwise
from pytest_flashinfer_perf.models.description import Grouped, Latent, Recurrent
from pytest_flashinfer_perf.models.kernel import Call, Kernel, shared
from pytest_flashinfer_perf.models.products import Weights, of_heads, product
from pytest_flashinfer_perf.models.step import Step

DECODE = "BatchDecodeWithPagedKVCacheWrapper"
PAGED = "BatchPrefillWithPagedKVCacheWrapper"
RAGGED = "BatchPrefillWithRaggedKVCacheWrapper"
MLA = "BatchMLAPagedAttentionWrapper"
SCAN = 6.0  # operations on each number of a state: to decay it, add to it, and read it


def grouped(layer: Grouped, hidden: int, stored: str, step: Step) -> Iterator[Kernel]:
    """Key and value heads are replicated where there are fewer than GPUs."""
    tp, size = step.spread.tp, layer.head_dim
    heads = shared(layer.heads, tp, "query heads")
    kv_heads = shared(layer.kv_heads, tp, "key and value heads") if layer.kv_heads > tp else 1
    wide = layer.q_width // tp + 2 * kv_heads * size
    yield product("qkv", step.tokens, Weights(wide, hidden, stored, "qkv" in layer.biases))
    yield from _prepared(layer, heads, kv_heads, step)
    yield _attention(layer, heads, kv_heads, step)
    yield product("o", step.tokens, Weights(hidden, heads * size, stored, "o" in layer.biases))


def _prepared(layer: Grouped, heads: int, kv_heads: int, step: Step) -> Iterator[Kernel]:
    """Queries and keys, by head or whole, normed and rotated; keys and values put into the cache."""
    size = layer.head_dim
    if layer.normed == 2 * size:
        yield elementwise.norm("q-norm", step.tokens * heads, size)
        yield elementwise.norm("k-norm", step.tokens * kv_heads, size)
    elif layer.normed:
        yield elementwise.norm("q-norm", step.tokens, heads * size)
        yield elementwise.norm("k-norm", step.tokens, kv_heads * size)
    if layer.rotated:
        yield elementwise.rope(heads, kv_heads, size, step)
    yield elementwise.append(kv_heads, size, step)


def _attention(layer: Grouped, heads: int, kv_heads: int, step: Step) -> Kernel:
    seen = min(step.context, layer.window or step.context)
    flops = 4.0 * step.tokens * heads * layer.head_dim * _attended(seen, step)
    reasons = [f"a window of {seen}"] * (seen < step.context) + ["sinks"] * layer.sinks
    if reasons:
        name = "attention" if seen == step.context else "window attention"
        reason = f"no routine measures attention with {' and '.join(reasons)}"
        return Kernel.gap_of(name, reason, parameters=heads * layer.sinks, flops=flops)
    sizes = {"num_qo_heads": heads, "num_kv_heads": kv_heads, "head_dim_qk": layer.head_dim}
    cached: dict[str, Any] = {**sizes, "head_dim_vo": layer.head_dim, "page_size": step.page_size}
    call = Call(PAGED if step.phase == "prefill" else DECODE, {**_requests(step), **cached})
    return Kernel.called("attention", (call,), 0, flops)


def _attended(seen: int, step: Step) -> float:
    """Tokens that a query sees: of a prompt, those before it."""
    return seen * (1 - seen / (2 * step.context)) if step.phase == "prefill" else seen


def _requests(step: Step) -> dict[str, Any]:
    lengths = {"batch_size": step.requests, "s_kv": step.context, "random_actual_seq_len": step.mixed}
    prompt = {"s_qo": step.context, "causal": True} if step.phase == "prefill" else {}
    half = {"q_dtype": "float16"} if step.kv_dtype == "float16" else {}
    return {**lengths, **prompt, **half, "kv_dtype": step.kv_dtype}


def latent(layer: Latent, hidden: int, stored: str, step: Step) -> Iterator[Kernel]:
    """Decoding meets the cache of latents with absorbed queries; prefilling expands keys and values for each head."""
    heads, query = shared(layer.heads, step.spread.tp, "query heads"), layer.nope_dim + layer.rope_dim
    down = layer.q_rank + layer.kv_rank + layer.rope_dim
    yield product("qkv-down", step.tokens, Weights(down, hidden, stored))
    yield product("q-up", step.tokens, Weights(heads * query, layer.q_rank, stored))
    yield elementwise.norm("q-norm", step.tokens, layer.q_rank)
    yield elementwise.norm("kv-norm", step.tokens, layer.kv_rank)
    yield elementwise.rope(heads, 1, layer.rope_dim, step)
    yield elementwise.append_latent(layer.kv_rank, layer.rope_dim, step)
    yield from (_expanded if step.phase == "prefill" else _absorbed)(layer, heads, stored, step)
    yield product("o", step.tokens, Weights(hidden, heads * layer.v_dim, stored))


def _absorbed(layer: Latent, heads: int, stored: str, step: Step) -> Iterator[Kernel]:
    sizes = {"num_qo_heads": heads, "head_dim_ckv": layer.kv_rank, "head_dim_kpe": layer.rope_dim}
    flops = 2.0 * step.tokens * heads * step.context * (2 * layer.kv_rank + layer.rope_dim)
    yield of_heads("absorb-q", heads, step.tokens, Weights(layer.kv_rank, layer.nope_dim, stored))
    yield Kernel.called("attention", (Call(MLA, {**_requests(step), **sizes, "page_size": step.page_size}),), 0, flops)
    yield of_heads("absorb-v", heads, step.tokens, Weights(layer.v_dim, layer.kv_rank, stored))


def _expanded(layer: Latent, heads: int, stored: str, step: Step) -> Iterator[Kernel]:
    query = layer.nope_dim + layer.rope_dim
    sizes = {"num_qo_heads": heads, "num_kv_heads": heads, "head_dim_qk": query, "head_dim_vo": layer.v_dim}
    flops = step.tokens * heads * step.context * (query + layer.v_dim)
    yield product("kv-up", step.tokens, Weights(heads * (layer.nope_dim + layer.v_dim), layer.kv_rank, stored))
    yield Kernel.called("attention", (Call(RAGGED, {**_requests(step), **sizes}),), 0, float(flops))


def recurrent(layer: Recurrent, hidden: int, stored: str, step: Step) -> Iterator[Kernel]:
    wide = shared(layer.width_in, step.spread.tp, f"columns of the {layer.kind} projection")
    inner = shared(layer.width_out, step.spread.tp, f"columns of the {layer.kind} output")
    yield product("state-in", step.tokens, Weights(wide, hidden, stored))
    other, flops = -(-layer.other // step.spread.tp), SCAN * step.tokens * layer.state / step.spread.tp
    yield Kernel.gap_of("scan", f"no routine measures {layer.kind}", parameters=other, flops=flops)
    yield product("state-out", step.tokens, Weights(hidden, inner, stored))
