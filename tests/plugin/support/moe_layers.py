"""Fused MoE layers by hand: activations, rounding and the order of weights' scales."""

from dataclasses import replace

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


def stored(x, **changes):
    return x._replace(stored=x.stored._replace(**changes))
