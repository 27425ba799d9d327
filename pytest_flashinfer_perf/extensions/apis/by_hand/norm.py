"""Norms of three dimensions, and those of video models, which have no template."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from pytest_flashinfer_perf.extensions.apis.by_hand import Mended, Output, Template, sized

DIT = "flashinfer.norm.fused_dit_{}"
WIDTH = 3072  # the one that the kernel has
BASE, EPSILON = 10000.0, 1e-6
Init = Callable[..., dict[str, Any]]


def _of_heads(usual: Init) -> Init:
    """More than one head makes an input of three dimensions, which another kernel normalises."""

    def init(*, num_heads: int = 1, **axes: Any) -> dict[str, Any]:
        made = usual(**{**axes, "batch_size": axes["batch_size"] * num_heads})
        if num_heads > 1:
            made["input"] = made["input"].unflatten(0, (-1, num_heads))
        return made

    return init


def _dit_init(gate: int | None, shift: int | None) -> Init:
    """Slices of a time embedding and of its table, as a WAN model hands them over: that of the gate, and those of shift
    and scale; without these, gamma and beta.
    """

    @sized(batch_size=None, num_rows=None)
    def init(at: Any, device: str) -> dict[str, Any]:
        shape = (at.batch_size, at.num_rows, WIDTH)
        made = {name: torch.randn(shape, dtype=torch.bfloat16, device=device) for name in ("input", "residual")}
        embedding = torch.randn(at.batch_size, at.num_rows, 6, WIDTH, dtype=torch.bfloat16, device=device)
        parts, biases = embedding.unbind(2), torch.randn(1, 6, WIDTH, device=device).unbind(1)
        if shift is None:
            made["gamma"], made["beta"] = torch.randn(2, WIDTH, device=device)
        places = {"gate": gate, "shift": shift, "scale": None if shift is None else shift + 1}
        for name, place in places.items():
            if place is not None:
                made |= {name: parts[place], f"{name}_bias": biases[place]}
        return made

    return init


_gamma_beta_init = _dit_init(gate=2, shift=None)
_scale_shift_init = _dit_init(gate=5, shift=0)
_residual_init = _dit_init(gate=None, shift=3)


def _dit(
    input: Tensor,
    residual: Tensor,
    gate: Tensor | None = None,
    gate_bias: Tensor | None = None,
    gamma: Tensor | None = None,
    beta: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    scale_bias: Tensor | None = None,
    shift_bias: Tensor | None = None,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    gated = input if gate is None or gate_bias is None else input * (gate + gate_bias)
    after = _wide(residual) + _wide(gated)
    normalised = layer_norm(after, (WIDTH,), eps=epsilon)
    if gamma is not None and beta is not None:
        normalised = normalised * gamma + beta
    if scale is not None and shift is not None and scale_bias is not None and shift_bias is not None:
        normalised = normalised * (1 + _wide(scale) + scale_bias) + _wide(shift) + shift_bias
    return after, normalised


def _wide(rows: Tensor) -> Tensor:
    return rows if rows.itemsize > 4 else rows.float()


@sized(batch_size=None, hidden_size=3072, num_heads=24, ppf=5, pph=12, ppw=32)
def _video_init(at: Any, device: str) -> dict[str, Any]:
    head_dim = at.hidden_size // at.num_heads
    across = 2 * (head_dim // 6)
    qkv = torch.randn(at.batch_size, at.ppf * at.pph * at.ppw, 3 * at.hidden_size, dtype=torch.bfloat16, device=device)
    weights = torch.randn(2, at.hidden_size, dtype=torch.bfloat16, device=device)
    others = dict.fromkeys(("num_height_channels", "num_width_channels"), across)
    channels = {"num_frame_channels": head_dim - 2 * across, **others}
    heads = dict.fromkeys(("num_heads_q", "num_heads_k", "num_heads_v"), at.num_heads)
    patches = {"ppf": at.ppf, "pph": at.pph, "ppw": at.ppw}
    sizes = {**patches, **channels, **heads, "head_dim": head_dim}
    return {"qkv": qkv, "q_weight": weights[0], "k_weight": weights[1], **sizes}


def _video(
    qkv: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    ppf: int,
    pph: int,
    ppw: int,
    num_frame_channels: int,
    num_height_channels: int,
    num_width_channels: int,
    head_dim: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Q and K normalised over all heads, each head rotated by its patch's place in frames, rows and columns."""
    places = torch.cartesian_prod(*(torch.arange(count, device=qkv.device) for count in (ppf, pph, ppw)))
    channels = (num_frame_channels, num_height_channels, num_width_channels)
    powers = [-torch.arange(0, width, 2, device=qkv.device).double() / width for width in channels]
    angles = torch.cat([places[:, nth, None] * BASE**power for nth, power in enumerate(powers)], -1)
    q, k, v = qkv.float().chunk(3, -1)
    turned = (_turned(_rms(x, w).unflatten(-1, (-1, head_dim)), angles) for x, w in ((q, q_weight), (k, k_weight)))
    return (*turned, v.unflatten(-1, (-1, head_dim)))


def _turned(heads: Tensor, angles: Tensor) -> Tensor:
    """Pairs of neighbours are turned."""
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)).contiguous())
    turns = torch.polar(torch.ones_like(angles), angles)[:, None].to(pairs.dtype)
    return torch.view_as_real(pairs * turns).flatten(-2)


def _rms(rows: Tensor, weight: Tensor) -> Tensor:
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + EPSILON) * weight.float()


NORMALISED = {"residual_out": Output(), "norm_out": Output()}
TEMPLATES = {
    "flashinfer.norm.rmsnorm": Mended(around_init=_of_heads),
    "flashinfer.norm.gemma_rmsnorm": Mended(around_init=_of_heads),
    DIT.format("gate_residual_layernorm_gamma_beta"): Template("norm", _gamma_beta_init, _dit, NORMALISED),
    DIT.format("gate_residual_layernorm_scale_shift"): Template("norm", _scale_shift_init, _dit, NORMALISED),
    DIT.format("residual_layernorm_scale_shift"): Template("norm", _residual_init, _dit, NORMALISED),
    "flashinfer.norm.fused_qk_rmsnorm_rope": Template(
        "norm", _video_init, _video, {"q_out": Output(), "k_out": Output(), "v_out": Output()}
    ),
}
