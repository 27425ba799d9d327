"""Gated delta rule: references that normalise queries and keys, know each layout of the state, and take more tokens.

FlashInfer's templates of one-token decoding take raw queries, which the kernels normalise by default, and one layout
of the state for both kernels; that of prefill computes the gates from inputs that the API is given as gates.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines.derived.by_hand import Mended, Output

EPSILON = 1e-6  # of the kernels' normalisation
STATES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def _normalised(rows: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + EPSILON)


def _step(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """The state [..., V, K] after one token: what the key recalls is replaced by the value, by a share of `beta`."""
    state = state * decay[..., None, None]
    recalled = (state @ k[..., None])[..., 0]
    return state + ((v - recalled) * beta[..., None])[..., None] @ k[..., None, :]


def _gates(A_log: Tensor, a: Tensor, dt_bias: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    decay = torch.exp(-A_log.float().exp() * torch.nn.functional.softplus(a.float() + dt_bias.float()))
    return decay, b.float().sigmoid()


def _tokens(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, decay: Tensor, beta: Tensor, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Token by token, [batch, tokens, heads, dim], with the state in V x K."""
    each = v.shape[2] // q.shape[2], v.shape[2] // k.shape[2]
    q, k = q.float().repeat_interleave(each[0], 2), k.float().repeat_interleave(each[1], 2)
    scale = scale or q.shape[-1] ** -0.5
    outputs = []
    for t in range(q.shape[1]):
        state = _step(state, k[:, t], v[:, t].float(), decay[:, t], beta[:, t])
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
TEMPLATES = {
    "flashinfer.gdn_decode.gated_delta_rule_decode": Mended(reference=_decoded_by_columns, outputs=IN_PLACE),
    "flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose": Mended(
        reference=_decoded, around_init=_with_state, outputs=IN_PLACE, words={"state_dtype": tuple(STATES)}
    ),
    "flashinfer.gdn_prefill.chunk_gated_delta_rule": Mended(reference=_prefilled),
}
