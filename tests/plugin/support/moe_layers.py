"""Fused MoE layers by hand: activations, rounding and the order of weights' scales."""

import torch
from decoding import fp4

from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.moe.cutlass import CutlassFusedMoe

PLAIN = CutlassFusedMoe(num_tokens=33, hidden_size=64, intermediate_size=64, num_experts=8, top_k=2)
VARIANTS = ("base", "fp8", "nvfp4", "deepseek_fp8_block_scale")


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


def stored(x, **changes):
    return x._replace(stored=x.stored._replace(**changes))
