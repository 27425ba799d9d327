"""Recurrent states: the gated delta rule, and Mamba's update of its states, with and without a ring of past tokens.

FlashInfer's templates of one-token decoding by the gated delta rule take raw queries, which the kernels normalise by
default, and one layout of the state for both kernels; that of prefill computes the gates from inputs that the API is
given as gates. Its template of Mamba's update knows neither heads nor groups, more tokens, or a cache of states;
`checkpointing_ssu` has none.
"""

from __future__ import annotations

import functools
import itertools
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.extensions.apis.by_hand import Mended, Output, Template, sized
from pytest_flashinfer_perf.spec.dtypes import TORCH

EPSILON = 1e-6  # of the kernels' normalisation
STATES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _normalised(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + EPSILON)


def _gates(A_log: Tensor, a: Tensor, dt_bias: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    decay = torch.exp(-A_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias.float()))
    return decay, b.float().sigmoid()


def _tokens(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, decay: Tensor, beta: Tensor, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Token by token, [batch, tokens, heads, dim], with the state in V x K: what a token's key recalls is replaced by
    its value, by a share of `beta`.
    """
    each = v.shape[2] // q.shape[2], v.shape[2] // k.shape[2]
    q, k = q.float().repeat_interleave(each[0], 2), k.float().repeat_interleave(each[1], 2)
    scale = scale or q.shape[-1] ** -0.5
    outputs = []
    for t in range(q.shape[1]):
        state, key = state * decay[:, t, ..., None, None], k[:, t, ..., None]
        missing = v[:, t].float() - (state @ key)[..., 0]
        state = state + (missing * beta[:, t, ..., None])[..., None] @ key.mT
        outputs.append(scale * (state @ q[:, t, ..., None])[..., 0])
    return torch.stack(outputs, 1), state


def _decoded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    A_log: Tensor,
    a: Tensor,
    dt_bias: Tensor,
    b: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    decay, beta = _gates(A_log, a, dt_bias, b)
    return _tokens(_normalised(q.float()), _normalised(k.float()), v, state.float(), decay, beta, scale)


@functools.wraps(_decoded)
def _decoded_by_columns(*, state: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
    """With the state in K x V."""
    out, after = _decoded(state=state.transpose(-1, -2), **others)
    return out, after.transpose(-1, -2).contiguous()


def _with_state(usual: Any) -> Any:
    """FlashInfer's inputs, with the state in the type that is asked for."""

    def init(*, state_dtype: str = "float32", **axes: Any) -> dict[str, Any]:
        made: dict[str, Any] = usual(**axes)
        return {**made, "state": made["state"].to(STATES[state_dtype])}

    return init


def _prefilled(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, cu_seqlens: Tensor, scale: float | None = None
) -> Tensor:
    edges, outputs = cu_seqlens.tolist(), []
    for start, end in itertools.pairwise(edges):
        own, empty = slice(start, end), q.new_zeros(1, v.shape[1], v.shape[2], q.shape[2], dtype=torch.float32)
        outputs.append(
            _tokens(q[None, own], k[None, own], v[None, own], empty, a[None, own], b[None, own], scale)[0][0]
        )
    return torch.cat(outputs)


IN_PLACE = {"output": Output(dtype="bfloat16"), "new_state": Output(param="state")}


# Mamba's state update as it is called for Mamba 2: heads, groups, tokens, and a cache of states by index.

LEAST_STATES, STATES_EACH = 384, 10  # of upstream's cache
SIZES = {"batch_size": None, "nheads": 64, "dim": 128, "dstate": 128, "ngroups": 8}
TYPES = {"state_dtype": "bfloat16", "weight_dtype": "float32", "has_z": False}


@sized(**SIZES, cache_steps=0, **TYPES, dt_softplus=False)
def _mamba_init(at: Any, device: str) -> dict[str, Any]:
    call = _mamba_call(at, device, max(LEAST_STATES, STATES_EACH * at.batch_size), at.cache_steps)
    return {**call, "cache_steps": at.cache_steps}


def _mamba_call(at: Any, device: str, states: int, tokens: int) -> dict[str, Any]:
    """With tokens as a dimension, or without one. Weights that are one number a head are views without a stride, which
    selects the kernel for them.
    """
    rows = (at.batch_size, tokens) if tokens else (at.batch_size,)
    inputs = partial(torch.randn, dtype=torch.bfloat16, device=device)
    weights = partial(torch.randn, dtype=TORCH[at.weight_dtype], device=device)
    decay, bias = -torch.rand(at.nheads, device=device) - 1.0, torch.rand(at.nheads, device=device) - 4.0
    call = {
        "state": torch.randn(states, at.nheads, at.dim, at.dstate, dtype=TORCH[at.state_dtype], device=device),
        "x": inputs((*rows, at.nheads, at.dim)),
        "dt": weights((*rows, at.nheads))[..., None].expand(*rows, at.nheads, at.dim),
        "A": decay[:, None, None].expand(at.nheads, at.dim, at.dstate),
        "B": inputs((*rows, at.ngroups, at.dstate)),
        "C": inputs((*rows, at.ngroups, at.dstate)),
        "D": weights((at.nheads,))[:, None].expand(at.nheads, at.dim),
        "dt_bias": bias.to(TORCH[at.weight_dtype])[:, None].expand(at.nheads, at.dim),
        "dt_softplus": at.dt_softplus,
        "state_batch_indices": torch.randperm(states, device=device)[: at.batch_size],
    }
    return {**call, "z": inputs((*rows, at.nheads, at.dim))} if at.has_z else call


def _mamba_updated(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    dt_bias: Tensor,
    state_batch_indices: Tensor,
    dt_softplus: bool,
    z: Tensor | None = None,
) -> Tensor:
    """Token by token, in fp32 and without products: the kernel reads and writes states, which is all its work."""
    own, shape = state[state_batch_indices].float(), x.shape
    if x.dim() == 3:  # one token each
        x, dt, B, C = (part[:, None] for part in (x, dt, B, C))
    own, out = _scanned(own, x, _steps(dt, dt_bias, soft=dt_softplus), A, B, C, D)
    state[state_batch_indices] = own.to(state.dtype)
    return _gated(out.reshape(shape), z)


def _gated(out: Tensor, z: Tensor | None) -> Tensor:
    return out if z is None else out * torch.nn.functional.silu(z.float())


def _steps(dt: Tensor, dt_bias: Tensor, *, soft: bool) -> Tensor:
    steps = dt.float() + dt_bias.float()
    return torch.nn.functional.softplus(steps) if soft else steps


def _scanned(
    own: Tensor, x: Tensor, steps: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor
) -> tuple[Tensor, Tensor]:
    """The states after all tokens of [batch, tokens, ...], and what they answer to each."""
    outputs = []
    x, C = x.float(), C.float().repeat_interleave(x.shape[-2] // C.shape[-2], -2)
    for t in range(x.shape[1]):
        own = _stepped(own, x[:, t], steps[:, t], A, B[:, t])
        outputs.append((own * C[:, t, :, None]).sum(-1) + D.float() * x[:, t])
    return own, torch.stack(outputs, 1)


def _stepped(own: Tensor, x: Tensor, step: Tensor, A: Tensor, B: Tensor) -> Tensor:
    B = B.float().repeat_interleave(x.shape[-2] // B.shape[-2], -2)
    return own * torch.exp(step[..., None] * A) + (step * x.float())[..., None] * B[..., None, :]


# With a ring of the tokens since the state was last written: they are replayed, and new ones are appended. The state
# is written with the replayed ones once the new ones no longer fit into the window; the ring holds both. FlashInfer's
# host advances a ring's start then, so that these calls can be repeated.


@sized(**{**SIZES, "dim": 64}, num_predicted_tokens=4, max_window=16, **TYPES, dt_softplus=True)
def _ring_init(at: Any, device: str) -> dict[str, Any]:
    """Requests have replayed none to all of a window; scratch memory lets FlashInfer choose between two kernels."""
    from flashinfer.mamba import allocate_checkpointing_ssu_scratch

    states, ring = 2 * at.batch_size, at.max_window + at.num_predicted_tokens
    call = _mamba_call(at, device, states, at.num_predicted_tokens)
    x = call["x"]
    inputs = partial(torch.randn, dtype=x.dtype, device=device)
    scratch = (at.batch_size, at.nheads, at.num_predicted_tokens, at.max_window, x.dtype, device)
    counts = partial(torch.randint, size=(states,), dtype=torch.int32, device=device)
    return {
        **call,
        "x_cache": inputs((states, at.nheads, ring, at.dim)),
        "B_cache": inputs((states, at.ngroups, ring, at.dstate)),
        "dt_cache": torch.rand(states, at.nheads, ring, device=device) / 16,  # as softplus leaves them
        "ring_start": counts(0, ring),
        "prev_num_accepted_tokens": counts(0, at.max_window + 1),
        "out": torch.empty_like(x),
        **dict(zip(SCRATCH, map(torch.zeros_like, allocate_checkpointing_ssu_scratch(*scratch)), strict=True)),
    }


def _replayed(
    state: Tensor,
    x_cache: Tensor,
    B_cache: Tensor,
    dt_cache: Tensor,
    state_batch_indices: Tensor,
    z: Tensor | None = None,
    **call: Any,
) -> dict[str, Tensor]:
    """All but the scratch memory, which only one of FlashInfer's two kernels writes."""
    x, A, B, slots = call["x"], call["A"], call["B"], state_batch_indices
    start, count = (call[name][slots].long() for name in ("ring_start", "prev_num_accepted_tokens"))
    tokens, ring = x.shape[1], x_cache.shape[2]
    own = state[slots].float()
    for nth in range(ring - tokens):
        row = (slots, slice(None), (start + nth) % ring)
        after = _stepped(own, x_cache[row], dt_cache[row][..., None].float(), A, B_cache[row])
        own = torch.where((nth < count)[:, None, None, None], after, own)
    is_full = (count + tokens > ring - tokens)[:, None, None, None]
    state[slots] = torch.where(is_full, own.to(state.dtype), state[slots])
    steps = _steps(call["dt"], call["dt_bias"], soft=call["dt_softplus"])
    _, out = _scanned(own, x, steps, A, B, call["C"], call["D"])
    for t in range(tokens):
        row = (slots, slice(None), (start + count + t) % ring)
        x_cache[row], B_cache[row], dt_cache[row] = x[:, t], B[:, t], steps[:, t, :, 0].to(dt_cache.dtype)
    return dict(zip(RING, (_gated(out, z), state, x_cache, B_cache, dt_cache), strict=False))


SCRATCH = ("cb_scaled", "cumAdt_vec", "cb_old")
RING = {
    "output": Output(param="out"),
    **{f"new_{name}": Output(param=name) for name in ("state", "x_cache", "B_cache", "dt_cache", *SCRATCH)},
}
MAMBA_WORDS = {
    "state_dtype": ("bfloat16", "float16", "float32"),
    "weight_dtype": ("float32", "bfloat16"),
    "cache_steps": (),
    "has_z": (),
    "dt_softplus": (),
}
RING_WORDS = {name: words for name, words in MAMBA_WORDS.items() if name != "cache_steps"}
TEMPLATES = {
    "flashinfer.gdn_decode.gated_delta_rule_decode": Mended(reference=_decoded_by_columns, outputs=IN_PLACE),
    "flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose": Mended(
        reference=_decoded, around_init=_with_state, outputs=IN_PLACE, words={"state_dtype": tuple(STATES)}
    ),
    "flashinfer.gdn_prefill.chunk_gated_delta_rule": Mended(reference=_prefilled),
    "flashinfer.mamba.selective_state_update.selective_state_update": Mended(
        _mamba_init, _mamba_updated, words=MAMBA_WORDS
    ),
    "flashinfer.mamba.checkpointing_ssu.checkpointing_ssu": Template("mamba", _ring_init, _replayed, RING, RING_WORDS),
}
