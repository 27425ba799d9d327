"""Templates by hand: of recurrent states, whose own templates answer otherwise than the kernels, and of `top_k`.

FlashInfer's templates of one-token decoding by the gated delta rule take raw queries, which the kernels normalise by
default, and one layout of the state for both kernels; that of prefill computes the gates from inputs that the API is
given as gates. Its template of Mamba's update knows neither heads nor groups, nor a cache of states.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

Function = Callable[..., Any]
Key = tuple[str, str]  # an API's path and a template's label
EPSILON = 1e-6  # of the kernels' normalisation
LEAST_STATES, STATES_EACH = 384, 10  # of upstream's cache


@dataclass(frozen=True)
class Output:
    """A tensor of the answer, with the attributes by which FlashInfer's templates describe one."""

    dim_names: tuple[str, ...] = ()
    dtype: str = ""
    param: str = ""  # the argument that it is written to
    optional: bool = False


@dataclass
class Template:
    """What replaces a part of FlashInfer's template, or is one of its own where FlashInfer has none."""

    reference: Function
    init: Function | None = None
    outputs: Mapping[str, Output] = field(default_factory=dict)
    op_type: str = ""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    axes: Mapping[str, Any] = field(default_factory=dict)

    def instead_of(self, template: Any) -> Any:
        result = copy.copy(template)
        result.reference = self.reference
        result.init, result.outputs = self.init or template.init, self.outputs or template.outputs
        return result


def completed(
    registered: Mapping[Key, tuple[Function, Any]], located: Callable[[str], Any]
) -> Iterator[tuple[Key, tuple[Function, Any]]]:
    """The templates by hand that this FlashInfer has an API for."""
    for path, ours in TEMPLATES.items():
        of_flashinfer = {key: entry for key, entry in registered.items() if key[0] == path}
        for key, (function, template) in of_flashinfer.items():
            yield key, (function, ours.instead_of(template))
        if not of_flashinfer and ours.init:
            with suppress(ImportError, AttributeError):  # an API of a newer FlashInfer
                yield (path, path.rpartition(".")[2]), (located(path), ours)


# The gated delta rule.


def _normalised(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + EPSILON)


def _gates(A_log: Tensor, a: Tensor, dt_bias: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    decay = torch.exp(-A_log.float().exp() * softplus(a.float() + dt_bias.float()))
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
    """Decode with the state in K x V."""
    out, after = _decoded(state=state.transpose(-1, -2), **others)
    return out, after.transpose(-1, -2).contiguous()


def _prefilled(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, cu_seqlens: Tensor, scale: float | None = None
) -> Tensor:
    outputs = []
    for start, end in itertools.pairwise(cu_seqlens.tolist()):
        rows, decay, keys, values, beta = (part[None, start:end] for part in (q, a, k, v, b))
        empty = q.new_zeros(1, v.shape[1], v.shape[2], q.shape[2], dtype=torch.float32)
        outputs.append(_tokens(rows, keys, values, empty, decay, beta, scale)[0][0])
    return torch.cat(outputs)


# Mamba's state update as it is called for Mamba 2: heads, groups, and a cache of states by index.


def _mamba_init(
    *,
    batch_size: int,
    nheads: int = 64,
    dim: int = 128,
    dstate: int = 128,
    ngroups: int = 8,
    device: str = "cuda",
    seed: int = 0,
) -> dict[str, Any]:
    """Weights that are one number a head are views without a stride, which selects the kernel for them."""
    torch.manual_seed(seed)
    states = max(LEAST_STATES, STATES_EACH * batch_size)
    inputs = functools.partial(torch.randn, dtype=torch.bfloat16, device=device)
    decay, bias = -torch.rand(nheads, device=device) - 1.0, torch.rand(nheads, device=device) - 4.0
    return {
        "state": inputs((states, nheads, dim, dstate)),
        "x": inputs((batch_size, nheads, dim)),
        "dt": torch.randn(batch_size, nheads, device=device)[..., None].expand(-1, -1, dim),
        "A": decay[:, None, None].expand(-1, dim, dstate),
        "B": inputs((batch_size, ngroups, dstate)),
        "C": inputs((batch_size, ngroups, dstate)),
        "D": torch.randn(nheads, device=device)[:, None].expand(-1, dim),
        "dt_bias": bias[:, None].expand(-1, dim),
        "dt_softplus": True,
        "state_batch_indices": torch.randperm(states, device=device)[:batch_size],
    }


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
) -> Tensor:
    """Update the state in fp32 and without products: the kernel only reads and writes states."""
    x, (B, C) = x.float(), (part.float().repeat_interleave(x.shape[1] // part.shape[1], 1) for part in (B, C))
    step = softplus(dt.float() + dt_bias.float())
    own = state[state_batch_indices].float() * torch.exp(step[..., None] * A)
    own = own + (step * x)[..., None] * B[..., None, :]
    state[state_batch_indices] = own.to(state.dtype)
    return (own * C[..., None, :]).sum(-1) + D.float() * x


# `top_k`, which has no template in FlashInfer 0.7.2.


def _top_init(
    *, batch_size: int, vocab_size: int = 128256, top_k: int = 50, device: str = "cuda", seed: int = 0
) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {"input": torch.randn(batch_size, vocab_size, device=device), "k": top_k}


def _top(input: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = input.topk(k)
    return values, indices


STATE = {"output": Output(dtype="bfloat16"), "new_state": Output(param="state")}
CHOSEN = {name: Output(("batch_size", "top_k")) for name in ("values", "indices")}
TEMPLATES = {
    "flashinfer.gdn_decode.gated_delta_rule_decode": Template(_decoded_by_columns, outputs=STATE),
    "flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose": Template(_decoded, outputs=STATE),
    "flashinfer.gdn_prefill.chunk_gated_delta_rule": Template(_prefilled),
    "flashinfer.mamba.selective_state_update.selective_state_update": Template(_mamba_updated, _mamba_init),
    "flashinfer.topk.top_k": Template(_top, _top_init, CHOSEN, op_type="topk"),
}
