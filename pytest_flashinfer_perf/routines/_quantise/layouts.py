"""Orders of scales and weight rows that kernels need."""

from __future__ import annotations

import torch
from torch import Tensor


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
