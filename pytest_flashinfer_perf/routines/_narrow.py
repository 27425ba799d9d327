"""Quantisers in plain torch, on any device: values and scales in the formats of FlashInfer's kernels, and back.

First the numbers that narrow types have, then scaled tensors in them, then the orders of scales and rows.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = E2M1[-1]
UE8M0_BIAS = 127


def _just_above(x: float) -> float:
    return float(torch.nextafter(torch.tensor(x), torch.tensor(math.inf)))


# Half way between neighbours the even code wins: from these on, magnitudes round up to the next code.
_FROM = (_just_above(0.25), 0.75, _just_above(1.25), 1.75, _just_above(2.5), 3.5, _just_above(5.0))


def to_e2m1(x: Tensor) -> Tensor:
    """Codes 0 to 15 of the nearest values, ties to even, saturated; the sign is the highest bit."""
    magnitude = torch.bucketize(x.float().abs(), _kept(_FROM, x.device), right=True)
    return (magnitude | (torch.signbit(x).long() << 3)).to(torch.uint8)


def from_e2m1(codes: Tensor) -> Tensor:
    return _kept((*E2M1, *(-value for value in E2M1)), codes.device)[codes.long()]


@functools.cache
def _kept(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept on the device: nothing is copied to it while a CUDA graph is captured."""
    return torch.tensor(values, device=device)


def packed(codes: Tensor) -> Tensor:
    """Pack two numbers into a byte along the last dimension, the first in the low half."""
    pairs: Tensor = codes.unflatten(-1, (-1, 2))
    return pairs[..., 0] | (pairs[..., 1] << 4)


def unpacked(pairs: Tensor) -> Tensor:
    return torch.stack((pairs & 0xF, pairs >> 4), -1).flatten(-2)


def to_ue8m0(x: Tensor) -> Tensor:
    """The power of two that is not below x, as its biased exponent; the smallest for zero."""
    mantissa, exponent = torch.frexp(x.float())
    at_least = exponent - (mantissa == 0.5).int()
    biased = torch.where(x > 0, at_least + UE8M0_BIAS, torch.zeros_like(at_least))
    return biased.clamp(0, 254).to(torch.uint8)


def from_ue8m0(exponents: Tensor) -> Tensor:
    """Exactly: the bits of the fp32 number, whose smallest power of two here is subnormal."""
    bits = exponents.int() << 23
    return torch.where(exponents > 0, bits, 1 << 22).view(torch.float32)


# Tensors in narrow types with their scales, rounded as the kernels round. Scales are linear here: [..., rows,
# blocks], in the order of what they scale. `layouts` has the other orders.

GROUP = 128  # of DeepSeek's FP8: 1x128 of activations, 128x128 of weights
MX_BLOCK = 32
NV_BLOCK = 16


@dataclass(frozen=True)
class PerTensor:
    """One scale for the tensor, as a number on the host, which the attention APIs need."""

    values: Tensor
    scale: float

    def dequantised(self) -> Tensor:
        return self.values.float() * self.scale


@dataclass(frozen=True)
class Groupwise:
    """FP8 values, and for each tile of rows x GROUP columns a scale that is a power of two in fp32."""

    values: Tensor
    scales: Tensor
    tile_rows: int

    def dequantised(self) -> Tensor:
        rows, columns = self.values.shape[-2:]
        by_row = self.scales.repeat_interleave(self.tile_rows, -2)[..., :rows, :, None]
        tiles: Tensor = torch.nn.functional.pad(self.values.float(), (0, -columns % GROUP)).unflatten(-1, (-1, GROUP))
        whole: Tensor = (tiles * by_row).flatten(-2)
        return whole[..., :columns]


@dataclass(frozen=True)
class Blocked:
    """Values and a scale for each block of a row, in units of `factor`."""

    values: Tensor
    scales: Tensor
    block: int
    factor: float = 1.0

    def dequantised(self) -> Tensor:
        exponents = self.scales.dtype == torch.uint8
        scales = (from_ue8m0(self.scales) if exponents else self.scales.float()) * self.factor
        blocks: Tensor = _numbers(self.values).unflatten(-1, (-1, self.block)) * scales[..., None]
        return blocks.flatten(-2)


def _numbers(values: Tensor) -> Tensor:
    """Unpack the stored numbers: FP4 has two in a byte, INT4 two in a signed byte, wider types one each."""
    if values.dtype == torch.int8:
        return torch.stack((values << 4 >> 4, values >> 4), -1).flatten(-2).float()
    return from_e2m1(unpacked(values)) if values.dtype == torch.uint8 else values.float()


def largest(x: Tensor) -> float:
    """The largest magnitude, without a copy of the magnitudes."""
    low, high = torch.aminmax(x)
    return max(-low.item(), high.item())


def per_tensor(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> PerTensor:
    scale = largest(x) / torch.finfo(dtype).max or 1.0
    return PerTensor((x / scale).to(dtype), scale)


def groupwise(x: Tensor, tile_rows: int, dtype: torch.dtype = torch.float8_e4m3fn) -> Groupwise:
    """Tiles of 1x128 or 128x128; the last ones may be partial."""
    rows, columns = x.shape[-2:]
    beyond = (0, -columns % GROUP, 0, -rows % tile_rows)
    tiles = torch.nn.functional.pad(x.float(), beyond).unflatten(-1, (-1, GROUP)).unflatten(-3, (-1, tile_rows))
    limit = torch.finfo(dtype).max
    scales = from_ue8m0(to_ue8m0(tiles.abs().amax((-3, -1)).clamp_min(1e-4) / limit))
    scaled = (tiles / scales[..., None, :, None]).clamp(-limit, limit)
    values = scaled.flatten(-4, -3).flatten(-2)[..., :rows, :columns]
    return Groupwise(values.to(dtype), scales, tile_rows)


def mxfp8(x: Tensor) -> Blocked:
    blocks = x.float().unflatten(-1, (-1, MX_BLOCK))
    limit = torch.finfo(torch.float8_e4m3fn).max
    scales = to_ue8m0(blocks.abs().amax(-1) / limit)
    values = (blocks / from_ue8m0(scales)[..., None]).clamp(-limit, limit)
    return Blocked(values.flatten(-2).to(torch.float8_e4m3fn), scales, MX_BLOCK)


def mxfp4(x: Tensor) -> Blocked:
    blocks = x.float().unflatten(-1, (-1, MX_BLOCK))
    scales = to_ue8m0(blocks.abs().amax(-1) / E2M1_MAX)
    values = to_e2m1(blocks / from_ue8m0(scales)[..., None])
    return Blocked(packed(values.flatten(-2)), scales, MX_BLOCK)


def int4(x: Tensor) -> Blocked:
    """Whole numbers from -8 to 7, and 16-bit scales of GROUP of them."""
    blocks = x.float().unflatten(-1, (-1, GROUP))
    scales = (blocks.abs().amax(-1) / 7).clamp_min(torch.finfo(torch.bfloat16).tiny).to(torch.bfloat16)
    whole = (blocks / scales.float()[..., None]).round().clamp(-8, 7).to(torch.int8)
    return Blocked(packed(whole.flatten(-2) & 0xF), scales, GROUP)


def nvfp4(x: Tensor, global_scale: float) -> Blocked:
    """`global_scale` multiplies the stored values; the scales are e4m3 in units of its reciprocal."""
    blocks = x.float().unflatten(-1, (-1, NV_BLOCK))
    limit = torch.finfo(torch.float8_e4m3fn).max
    scales = (blocks.abs().amax(-1) / E2M1_MAX * global_scale).clamp_max(limit).to(torch.float8_e4m3fn)
    inverse = torch.where(scales.float() > 0, global_scale / scales.float(), 0.0)
    values = to_e2m1(blocks * inverse[..., None])
    return Blocked(packed(values.flatten(-2)), scales, NV_BLOCK, 1.0 / global_scale)


def nvfp4_global_scale(x: Tensor) -> float:
    """The global scale with which the largest magnitude uses the whole range of both types."""
    return torch.finfo(torch.float8_e4m3fn).max * E2M1_MAX / (largest(x) or 1.0)


# Orders of scales and weight rows that kernels need.


def padded_128x4(rows: int, blocks: int) -> tuple[int, int]:
    return -(-rows // 128) * 128, -(-blocks // 4) * 4


def swizzled_128x4(scales: Tensor) -> Tensor:
    """Scales [rows, blocks] in tiles of 128 x 4, padded with zeros; rows r, r + 32, r + 64, r + 96 lie together."""
    rows, blocks = padded_128x4(*scales.shape)
    tiles = _zero_padded(scales, rows, blocks).view(rows // 128, 4, 32, blocks // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(rows, blocks)


def linear_128x4(swizzled: Tensor, rows: int, blocks: int) -> Tensor:
    """The inverse of `swizzled_128x4`."""
    all_rows, all_blocks = padded_128x4(rows, blocks)
    tiles = swizzled.reshape(all_rows // 128, all_blocks // 4, 32, 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(all_rows, all_blocks)[:rows, :blocks]


def swizzled_8x4(scales: Tensor) -> Tensor:
    """Scales [rows, blocks] in tiles of 8 rows x 4 blocks, padded with zeros."""
    rows, blocks = -(-scales.shape[0] // 8) * 8, -(-scales.shape[1] // 4) * 4
    tiles = _zero_padded(scales, rows, blocks).view(rows // 8, 8, blocks // 4, 4)
    return tiles.permute(0, 2, 1, 3).reshape(rows, blocks)


def _zero_padded(scales: Tensor, rows: int, blocks: int) -> Tensor:
    padded = torch.zeros(rows, blocks, dtype=torch.uint8, device=scales.device)
    padded[: scales.shape[0], : scales.shape[1]] = scales.view(torch.uint8)
    return padded.view(scales.dtype)


def mn_major(scales: Tensor) -> Tensor:
    """Scales [..., rows, blocks] as [..., blocks, rows]."""
    return scales.transpose(-1, -2).contiguous()


def shuffled_rows(weights: Tensor, epilogue_tile_m: int = 128) -> Tensor:
    """Rows in the order of trtllm's epilogue: of each 32 (16 for small tiles) every fourth (second) together."""
    block = 16 if epilogue_tile_m % 128 else 32
    grouped: Tensor = weights.unflatten(-2, (-1, 8, block // 8))
    return grouped.transpose(-2, -3).flatten(-4, -2)


def paired_rows(weights: Tensor) -> Tensor:
    """Rows of the first half and of the second in turn, for a gated epilogue."""
    halves: Tensor = weights.unflatten(-2, (2, -1))
    return halves.transpose(-2, -3).flatten(-3, -2)


def block_major(weights: Tensor, block: int) -> Tensor:
    """Weights [..., rows, k] as [..., k / block, rows, block]."""
    blocks: Tensor = weights.unflatten(-1, (-1, block))
    return blocks.transpose(-2, -3).contiguous()
