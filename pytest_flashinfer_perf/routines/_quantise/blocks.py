"""Tensors in narrow types with their scales, rounded as the kernels round.

Scales are linear here: [..., rows, blocks], in the order of what they scale. `layouts` has the other orders.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines._quantise import grids

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
        scales = (grids.from_ue8m0(self.scales) if exponents else self.scales.float()) * self.factor
        packed = self.values.dtype == torch.uint8
        values = grids.from_e2m1(grids.unpacked(self.values)) if packed else self.values.float()
        blocks: Tensor = values.unflatten(-1, (-1, self.block)) * scales[..., None]
        return blocks.flatten(-2)


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
    scales = grids.from_ue8m0(grids.to_ue8m0(tiles.abs().amax((-3, -1)).clamp_min(1e-4) / limit))
    scaled = (tiles / scales[..., None, :, None]).clamp(-limit, limit)
    values = scaled.flatten(-4, -3).flatten(-2)[..., :rows, :columns]
    return Groupwise(values.to(dtype), scales, tile_rows)


def mxfp8(x: Tensor) -> Blocked:
    blocks = x.float().unflatten(-1, (-1, MX_BLOCK))
    limit = torch.finfo(torch.float8_e4m3fn).max
    scales = grids.to_ue8m0(blocks.abs().amax(-1) / limit)
    values = (blocks / grids.from_ue8m0(scales)[..., None]).clamp(-limit, limit)
    return Blocked(values.flatten(-2).to(torch.float8_e4m3fn), scales, MX_BLOCK)


def mxfp4(x: Tensor) -> Blocked:
    blocks = x.float().unflatten(-1, (-1, MX_BLOCK))
    scales = grids.to_ue8m0(blocks.abs().amax(-1) / grids.E2M1_MAX)
    values = grids.to_e2m1(blocks / grids.from_ue8m0(scales)[..., None])
    return Blocked(grids.packed(values.flatten(-2)), scales, MX_BLOCK)


def nvfp4(x: Tensor, global_scale: float) -> Blocked:
    """`global_scale` multiplies the stored values; the scales are e4m3 in units of its reciprocal."""
    blocks = x.float().unflatten(-1, (-1, NV_BLOCK))
    limit = torch.finfo(torch.float8_e4m3fn).max
    scales = (blocks.abs().amax(-1) / grids.E2M1_MAX * global_scale).clamp_max(limit).to(torch.float8_e4m3fn)
    inverse = torch.where(scales.float() > 0, global_scale / scales.float(), 0.0)
    values = grids.to_e2m1(blocks * inverse[..., None])
    return Blocked(grids.packed(values.flatten(-2)), scales, NV_BLOCK, 1.0 / global_scale)


def nvfp4_global_scale(x: Tensor) -> float:
    """The global scale with which the largest magnitude uses the whole range of both types."""
    return torch.finfo(torch.float8_e4m3fn).max * grids.E2M1_MAX / (largest(x) or 1.0)
