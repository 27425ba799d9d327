"""nvfp4 outputs: packed values, and the swizzled scales of their blocks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines._quantise import blocks, layouts

O_SF_SCALE = 500.0  # as in vLLM's benchmark: scales are in units of its reciprocal


def empty(q: Tensor) -> tuple[Tensor, Tensor]:
    """Buffers for queries [batch, heads, dim]: values, two to a byte, and scales."""
    batch, heads, dim = q.shape
    packed = torch.empty(batch, heads, dim // 2, dtype=torch.uint8, device=q.device)
    padded = layouts.padded_128x4(batch, heads * dim // blocks.NV_BLOCK)
    return packed, torch.empty(padded, dtype=torch.float8_e4m3fn, device=q.device)


def as_the_api_takes_it(packed: Tensor, swizzled: Tensor) -> Any:
    from flashinfer.utils import FP4Tensor

    return FP4Tensor(packed, swizzled)


def write(packed: Tensor, swizzled: Tensor, out: Tensor) -> None:
    quantised = blocks.nvfp4(out.flatten(1), O_SF_SCALE)
    packed.copy_(quantised.values.view(packed.shape))
    swizzled.copy_(layouts.swizzled_128x4(quantised.scales))


def meant(packed: Tensor, swizzled: Tensor) -> Tensor:
    batch, heads, half = packed.shape
    scales = layouts.linear_128x4(swizzled, batch, heads * half * 2 // blocks.NV_BLOCK)
    rows = blocks.Blocked(packed.flatten(1), scales, blocks.NV_BLOCK, 1.0 / O_SF_SCALE)
    return rows.dequantised().view(batch, heads, half * 2)
