"""Fused MoE layers by hand: activations, rounding and the order of weights' scales."""

from dataclasses import is_dataclass, replace

import torch
from decoding import fp4

from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe.cutlass import CutlassFusedMoe

PLAIN = CutlassFusedMoe(num_tokens=33, hidden_size=64, intermediate_size=64, num_experts=8, top_k=2)
VARIANTS = ("base", "fp8", "nvfp4", "deepseek_fp8_block_scale", "w4a8")


def plain(variant):
    """In sizes that can be stored so."""
    sizes = {"hidden_size": 256, "intermediate_size": 128} if variant == "w4a8" else {}
    return replace(PLAIN, cutlass_variant=variant, **sizes)


def cdf(x):
    return (1 + torch.erf(x / 2**0.5)) / 2


def bent(x, limit):
    return limit * torch.tanh(x / limit)


ACT = {
    "Swiglu": lambda up, gate: up * gate * torch.sigmoid(gate),
    "SwigluBias": lambda up, gate: up * gate * torch.sigmoid(gate),
    "Geglu": lambda up, gate: up * gate * cdf(gate),
    "GegluTanh": lambda up, gate: up * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3))) / 2,
    "SwigluStep": lambda up, gate: up.clamp(-7, 7) * (gate * torch.sigmoid(gate)).clamp(max=7),
    "Situ": lambda up, gate: bent(gate, 4) * torch.sigmoid(gate) * bent(up, 25),
}
UNGATED = {
    "Gelu": lambda x: x * cdf(x),
    "Relu": lambda x: x.clamp_min(0),
    "Silu": lambda x: x * torch.sigmoid(x),
    "Relu2": lambda x: x.clamp_min(0) ** 2,
    "Identity": lambda x: x,
}


def rounded(x, unit):
    q = _narrow.nvfp4(x.float(), unit.item())
    return fp4(q.values, q.scales, 16)


def by_tiles(weights, scales):
    rows, columns = weights.shape[-2:]
    wide = scales.double().repeat_interleave(128, -2).repeat_interleave(128, -1)
    return weights.double() * wide[..., :rows, :columns]


def int4(pairs, scales):
    """The first of two numbers in a byte's low half, both signed, and a scale for each 128 of a row."""
    pairs = pairs.view(torch.uint8).int()
    numbers = torch.stack((pairs % 16, pairs // 16), -1).flatten(-2)
    signed = torch.where(numbers > 7, numbers - 16, numbers)
    return signed.double() * scales.double().repeat_interleave(128, -1)


def in_fp8(x):
    return x.float().clamp(-448, 448).to(torch.float8_e4m3fn).double()


def raw(t):
    return t.view(torch.uint8)


def stored(x, /, **changes):
    """Inputs with other weights or scales."""
    made = x.stored._replace(**changes)
    return replace(x, stored=made) if is_dataclass(x) else x._replace(stored=made)


def by_experts(p, layer, token, weights, *, on_input=False):
    """A token's answer, in double precision: of each expert that is here, by its weight.

    A layer is tokens, both weights, the factors of their products, and what happens between.
    """
    tokens, first, second, by_first, by_second, between = layer
    out = torch.zeros(p.hidden_size, dtype=torch.float64)
    for expert, weight in ((choice - p.here.start, weight) for choice, weight in weights if choice in p.here):
        rows = first[expert] @ tokens[token] * by_first[expert].double() * (weight if on_input else 1)
        half = len(rows) // 2
        gated = p.activation_type in ACT
        act = ACT[p.activation_type](rows[:half], rows[half:]) if gated else UNGATED[p.activation_type](rows)
        out += (1 if on_input else weight) * (second[expert] @ between(act)) * by_second[expert].double()
    return out


def near(got, wanted, tipped_over, share=1e-4):
    """A narrow value between the products may be tipped over by another order of sums."""
    return bool(((got - wanted).abs() <= tipped_over * wanted.square().mean().sqrt() + share * wanted.abs()).all())
