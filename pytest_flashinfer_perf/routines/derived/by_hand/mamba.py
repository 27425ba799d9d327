"""Mamba's state update as it is called for Mamba 2: heads, groups, one or more tokens, a cache of states by index."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines.derived.by_hand import Mended
from pytest_flashinfer_perf.spec.dtypes import TORCH

LEAST_STATES, STATES_EACH = 384, 10  # of upstream's cache


def _init(
    *,
    batch_size: int,
    nheads: int = 64,
    dim: int = 128,
    dstate: int = 128,
    ngroups: int = 8,
    cache_steps: int = 0,
    state_dtype: str = "bfloat16",
    weight_dtype: str = "float32",
    has_z: bool = False,
    dt_softplus: bool = False,
    device: str = "cuda",
    seed: int = 0,
) -> dict[str, Any]:
    """Weights that are one number a head are views without a stride, which selects the kernel for them."""
    torch.manual_seed(seed)
    states = max(LEAST_STATES, STATES_EACH * batch_size)
    rows = (batch_size, cache_steps) if cache_steps else (batch_size,)
    inputs = partial(torch.randn, dtype=torch.bfloat16, device=device)
    weights = partial(torch.randn, dtype=TORCH[weight_dtype], device=device)
    decay, bias = -torch.rand(nheads, device=device) - 1.0, torch.rand(nheads, device=device) - 4.0
    call = {
        "state": torch.randn(states, nheads, dim, dstate, dtype=TORCH[state_dtype], device=device),
        "x": inputs((*rows, nheads, dim)),
        "dt": weights((*rows, nheads))[..., None].expand(*rows, nheads, dim),
        "A": decay[:, None, None].expand(nheads, dim, dstate),
        "B": inputs((*rows, ngroups, dstate)),
        "C": inputs((*rows, ngroups, dstate)),
        "D": weights((nheads,))[:, None].expand(nheads, dim),
        "dt_bias": bias.to(TORCH[weight_dtype])[:, None].expand(nheads, dim),
        "dt_softplus": dt_softplus,
        "state_batch_indices": torch.randperm(states, device=device)[:batch_size],
        "cache_steps": cache_steps,
    }
    return {**call, "z": inputs((*rows, nheads, dim))} if has_z else call


def _updated(
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
    own, each, shape = state[state_batch_indices].float(), x.shape[-2] // B.shape[-2], x.shape
    if x.dim() == 3:  # one token each
        x, dt, B, C = (part[:, None] for part in (x, dt, B, C))
    x, dt, B, C = x.float(), dt.float(), B.float().repeat_interleave(each, -2), C.float().repeat_interleave(each, -2)
    outputs = []
    for t in range(x.shape[1]):
        step = dt[:, t] + dt_bias.float()
        step = torch.nn.functional.softplus(step) if dt_softplus else step
        own = own * torch.exp(step[..., None] * A) + (step * x[:, t])[..., None] * B[:, t, :, None]
        outputs.append((own * C[:, t, :, None]).sum(-1) + D.float() * x[:, t])
    state[state_batch_indices] = own.to(state.dtype)
    out = torch.stack(outputs, 1).reshape(shape)
    return out if z is None else out * torch.nn.functional.silu(z.float())


WORDS = {
    "state_dtype": ("bfloat16", "float16", "float32"),
    "weight_dtype": ("float32", "bfloat16"),
    "cache_steps": (),
    "has_z": (),
    "dt_softplus": (),
}
TEMPLATES = {
    "flashinfer.mamba.selective_state_update.selective_state_update": Mended(_init, _updated, words=WORDS),
}
