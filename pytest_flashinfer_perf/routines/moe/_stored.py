"""How cutlass_fused_moe stores weights and tokens, and what a call reads out of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.quantise import blocks, layouts

BETWEEN = 16.0  # FP8 between the products: values near 1 with a few near 20 use the type's range
BETWEEN_FP4 = 128.0  # of the block scales there, in NVFP4


class Stored(NamedTuple):
    """`scales` are the call's; NVFP4's of blocks are linear, [experts, rows, blocks], till a backend has them."""

    x: Tensor  # [tokens, hidden]
    x_blocks: Tensor | None  # [tokens, hidden / 16], of tokens in NVFP4
    first: Tensor  # [experts, columns, hidden]
    second: Tensor  # [experts, hidden, intermediate]
    scales: tuple[Tensor, ...]


def in_fp8(x: Tensor, first: Tensor, second: Tensor) -> Stored:
    """Scales: each first's by the tokens', what multiplies what is between, each second's by that, the tokens'."""
    tokens = blocks.per_tensor(x)
    by_expert = [[blocks.per_tensor(expert.float()) for expert in weights] for weights in (first, second)]
    between, scale = _numbers(x, BETWEEN, tokens.scale)
    firsts, seconds = (torch.tensor([q.scale for q in of], device=x.device) for of in by_expert)
    first, second = (_together([q.values for q in of]) for of in by_expert)
    return Stored(tokens.values, None, first, second, (firsts * scale, between, seconds / between, scale))


def in_nvfp4(x: Tensor, first: Tensor, second: Tensor, *, quantised_input: bool, dtype: torch.dtype) -> Stored:
    """Scales, of each product: what multiplies tokens, the weights' blocks', what undoes both."""
    unit = blocks.nvfp4_global_scale(x)
    units = [[blocks.nvfp4_global_scale(expert.float()) for expert in weights] for weights in (first, second)]
    quantised = [
        [blocks.nvfp4(expert.float(), by) for expert, by in zip(weights, of, strict=True)]
        for weights, of in zip((first, second), units, strict=True)
    ]
    scales = [
        part
        for q, of, by in zip(quantised, units, (unit, BETWEEN_FP4), strict=True)
        for part in (*_numbers(x, by), _together([e.scales for e in q]), 1.0 / (by * torch.tensor(of, device=x.device)))
    ]
    tokens = blocks.nvfp4(x, unit)
    first, second = (_together([e.values for e in q]) for q in quantised)
    if quantised_input:
        return Stored(tokens.values, tokens.scales, first, second, tuple(scales))
    return Stored(x.to(dtype), None, first, second, tuple(scales))


def _numbers(like: Tensor, *values: float) -> list[Tensor]:
    return [torch.tensor(value, device=like.device) for value in values]


def _together(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)


class Meant(NamedTuple):
    """What is multiplied: tokens and an expert's weights, by which factors, and how what is between is rounded."""

    tokens: Tensor
    first: Callable[[int], Tensor]
    second: Callable[[int], Tensor]
    by_first: Tensor | None = None
    by_second: Tensor | None = None
    rounded: Callable[[Tensor], Tensor] = torch.Tensor.contiguous


def meant(x: Stored) -> Meant:
    if not x.scales:
        return Meant(x.x, x.first.__getitem__, x.second.__getitem__)
    if len(x.scales) == 4:
        by_first, between, by_second, _ = x.scales
        return Meant(
            x.x, x.first.__getitem__, x.second.__getitem__, by_first, by_second, lambda act: _to_fp8(act * between)
        )
    unit, first, by_first, between, second, by_second = x.scales
    return Meant(
        _units(x.x, x.x_blocks) if x.x_blocks is not None else _rounded_to_nvfp4(x.x, unit),
        lambda number: _units(x.first[number], first[number]),
        lambda number: _units(x.second[number], second[number]),
        by_first,
        by_second,
        lambda act: _rounded_to_nvfp4(act, between),
    )


def _to_fp8(x: Tensor) -> Tensor:
    limit = torch.finfo(torch.float8_e4m3fn).max
    return x.clamp(-limit, limit).to(torch.float8_e4m3fn)


def _units(values: Tensor, scales: Tensor) -> Tensor:
    """NVFP4 in units of its tensor's scale."""
    return blocks.Blocked(values, scales, blocks.NV_BLOCK).dequantised()


def _rounded_to_nvfp4(x: Tensor, unit: Tensor) -> Tensor:
    q = blocks.nvfp4(x.float() * unit, 1.0)  # a number on the host could not be captured in a CUDA graph
    return _units(q.values, q.scales)


def as_passed(x: Stored) -> Stored:
    """NVFP4 as the kernel takes it: blocks' scales in tiles of 128 x 4, four to an int32; weights 16 to an int64."""
    if len(x.scales) != 6:
        return x
    unit, first, by_first, between, second, by_second = x.scales
    in_tiles = (_in_tiles(scales).view(torch.int32) for scales in (first, second))
    scales = (unit, next(in_tiles), by_first, between, next(in_tiles), by_second)
    x_blocks = None if x.x_blocks is None else layouts.swizzled_128x4(x.x_blocks)
    return Stored(x.x, x_blocks, x.first.view(torch.int64), x.second.view(torch.int64), scales)


def _in_tiles(scales: Tensor) -> Tensor:
    return torch.stack([layouts.swizzled_128x4(of_expert.view(torch.uint8)) for of_expert in scales])
