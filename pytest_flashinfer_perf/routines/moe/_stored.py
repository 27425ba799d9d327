"""Storage formats of a MoE's tokens and weights, one class each, and the values that they represent.

Weights are [experts, rows, columns]; of the first ones, the rows of what is gated come before those of its gate.
Scales of blocks are in linear order here; backends convert them in `takes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines._quantise import blocks, layouts
from pytest_flashinfer_perf.routines._quantise.blocks import GROUP, MX_BLOCK, NV_BLOCK, Blocked, Groupwise

BETWEEN = 16.0  # FP8 between the products: values near 1 with a few near 20 use the type's range
BETWEEN_FP4 = 128.0  # of the block scales there, in NVFP4


class ExpertLayer(NamedTuple):
    """A layer's tokens and weights, their factors, and the rounding of intermediate values."""

    tokens: Tensor
    first: Callable[[int], Tensor]
    second: Callable[[int], Tensor]
    by_first: Tensor | None = None
    by_second: Tensor | None = None
    rounded: Callable[[Tensor], Tensor] = torch.Tensor.contiguous


class Stored(Protocol):
    @property
    def x(self) -> Tensor:
        """Tokens, as they are stored."""
        ...

    def layer(self) -> ExpertLayer: ...

    @property
    def of_experts(self) -> tuple[Tensor, ...]:
        """The tensors of which an expert's part is read only if a token chose it."""
        ...


class Plain(NamedTuple):
    x: Tensor  # [tokens, hidden]
    first: Tensor
    second: Tensor

    @property
    def of_experts(self) -> tuple[Tensor, ...]:
        return (self.first, self.second)

    def layer(self) -> ExpertLayer:
        return ExpertLayer(self.x, self.first.__getitem__, self.second.__getitem__)


class Fp8(NamedTuple):
    """A scale for the tokens, one for each expert's weights, and one for intermediate values before they become FP8."""

    x: Tensor
    unit: Tensor  # the tokens' scale
    first: Tensor
    by_first: Tensor  # [experts], the tokens' scale included
    between: Tensor
    second: Tensor
    by_second: Tensor  # [experts], `between` taken out again

    @property
    def of_experts(self) -> tuple[Tensor, ...]:
        return (self.first, self.second)

    def layer(self) -> ExpertLayer:
        return ExpertLayer(
            self.x,
            self.first.__getitem__,
            self.second.__getitem__,
            self.by_first,
            self.by_second,
            lambda act: _to_fp8(act * self.between),
        )


def in_fp8(x: Tensor, first: Tensor, second: Tensor) -> Fp8:
    tokens, (between,) = blocks.per_tensor(x), _numbers(x, BETWEEN)
    by_expert = [[blocks.per_tensor(expert.float()) for expert in weights] for weights in (first, second)]
    firsts, seconds = (torch.tensor([q.scale for q in of], device=x.device) for of in by_expert)
    first, second = (_together([q.values for q in of]) for of in by_expert)
    (unit,) = _numbers(x, tokens.scale)
    return Fp8(tokens.values, unit, first, firsts * unit, between, second, seconds / between)


class Nvfp4(NamedTuple):
    """Block scales in units of a tensor's or an expert's scale; tokens may be left for the kernel to quantise."""

    x: Tensor
    x_blocks: Tensor | None  # [tokens, hidden / 16]
    unit: Tensor  # factor of the tokens
    first: Tensor
    first_blocks: Tensor
    by_first: Tensor  # [experts], undoes both units
    between: Tensor
    second: Tensor
    second_blocks: Tensor
    by_second: Tensor

    @property
    def of_experts(self) -> tuple[Tensor, ...]:
        return (self.first, self.first_blocks, self.second, self.second_blocks)

    def layer(self) -> ExpertLayer:
        return ExpertLayer(
            _rounded_to_nvfp4(self.x, self.unit) if self.x_blocks is None else _nvfp4(self.x, self.x_blocks),
            lambda number: _nvfp4(self.first[number], self.first_blocks[number]),
            lambda number: _nvfp4(self.second[number], self.second_blocks[number]),
            self.by_first,
            self.by_second,
            lambda act: _rounded_to_nvfp4(act, self.between),
        )


def in_nvfp4(x: Tensor, first: Tensor, second: Tensor, *, left: torch.dtype | None = None) -> Nvfp4:
    """Tokens are left in this type, if any, for the kernel to quantise."""
    unit = blocks.nvfp4_global_scale(x)
    tokens = blocks.nvfp4(x, unit)
    (by_x, between), parts = _numbers(x, unit, BETWEEN_FP4), (_experts_in_nvfp4(first), _experts_in_nvfp4(second))
    (first, first_blocks, firsts), (second, second_blocks, seconds) = parts
    return Nvfp4(
        tokens.values if left is None else x.to(left),
        tokens.scales if left is None else None,
        by_x,
        first,
        first_blocks,
        1.0 / (by_x * firsts),
        between,
        second,
        second_blocks,
        1.0 / (between * seconds),
    )


def _experts_in_nvfp4(weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    units = [blocks.nvfp4_global_scale(expert.float()) for expert in weights]
    quantised = [blocks.nvfp4(expert.float(), unit) for expert, unit in zip(weights, units, strict=True)]
    values, scales = (_together(parts) for parts in zip(*((q.values, q.scales) for q in quantised), strict=True))
    return values, scales, torch.tensor(units, device=weights.device)


class Mxfp4(NamedTuple):
    """Weights in MXFP4; tokens in MXFP8, or in 16 bits, without scales."""

    x: Tensor
    x_blocks: Tensor | None  # [tokens, hidden / 32], exponents
    first: Tensor
    first_blocks: Tensor
    second: Tensor
    second_blocks: Tensor

    @property
    def of_experts(self) -> tuple[Tensor, ...]:
        return (self.first, self.first_blocks, self.second, self.second_blocks)

    def layer(self) -> ExpertLayer:
        return ExpertLayer(
            self.x if self.x_blocks is None else Blocked(self.x, self.x_blocks, MX_BLOCK).dequantised(),
            lambda number: Blocked(self.first[number], self.first_blocks[number], MX_BLOCK).dequantised(),
            lambda number: Blocked(self.second[number], self.second_blocks[number], MX_BLOCK).dequantised(),
        )


def in_mxfp4(x: Tensor, first: Tensor, second: Tensor, *, left: torch.dtype | None = None) -> Mxfp4:
    """Tokens are in MXFP8, or left in this type."""
    tokens = blocks.mxfp8(x)
    of_x = (tokens.values, tokens.scales) if left is None else (x.to(left), None)
    return Mxfp4(of_x[0], of_x[1], *_by_expert(first, blocks.mxfp4), *_by_expert(second, blocks.mxfp4))


class Blockwise(NamedTuple):
    """FP8 as DeepSeek has it: a scale for each 128 x 128 of weights, and for each 128 of a token unless it is left."""

    x: Tensor
    x_scales: Tensor | None  # [tokens, hidden / 128]
    first: Tensor
    first_scales: Tensor
    second: Tensor
    second_scales: Tensor

    @property
    def of_experts(self) -> tuple[Tensor, ...]:
        return (self.first, self.first_scales, self.second, self.second_scales)

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        return (self.first, self.second)

    def tokens(self) -> Tensor:
        return self.x if self.x_scales is None else Groupwise(self.x, self.x_scales, 1).dequantised()

    def layer(self) -> ExpertLayer:
        return ExpertLayer(
            self.tokens(),
            lambda number: Groupwise(self.first[number], self.first_scales[number], GROUP).dequantised(),
            lambda number: Groupwise(self.second[number], self.second_scales[number], GROUP).dequantised(),
        )


def in_blocks(x: Tensor, first: Tensor, second: Tensor, *, left: torch.dtype | None = None) -> Blockwise:
    """Tokens are in FP8 too, or left in this type."""
    tokens = blocks.groupwise(x, 1)
    of_x = (tokens.values, tokens.scales) if left is None else (x.to(left), None)
    in_tiles_of_128 = partial(blocks.groupwise, tile_rows=GROUP)
    return Blockwise(of_x[0], of_x[1], *_by_expert(first, in_tiles_of_128), *_by_expert(second, in_tiles_of_128))


def in_tiles(scales: Tensor) -> Tensor:
    """Each expert's in tiles of 128 x 4."""
    return torch.stack([layouts.swizzled_128x4(of_expert.view(torch.uint8)) for of_expert in scales])


def _numbers(like: Tensor, *values: float) -> list[Tensor]:
    return [torch.tensor(value, device=like.device) for value in values]


def _by_expert(weights: Tensor, quantise: Callable[[Tensor], Blocked | Groupwise]) -> tuple[Tensor, Tensor]:
    """Values and scales, one expert after another, since all in fp32 would be too much."""
    quantised = [quantise(expert.float()) for expert in weights]
    return _together([q.values for q in quantised]), _together([q.scales for q in quantised])


def _together(parts: Sequence[Tensor]) -> Tensor:
    return torch.stack([part.view(torch.uint8) for part in parts]).view(parts[0].dtype)


def _to_fp8(x: Tensor) -> Tensor:
    limit = torch.finfo(torch.float8_e4m3fn).max
    return x.clamp(-limit, limit).to(torch.float8_e4m3fn)


def _nvfp4(values: Tensor, scales: Tensor) -> Tensor:
    """Scales in units of the tensor's scale."""
    return Blocked(values, scales, NV_BLOCK).dequantised()


def _rounded_to_nvfp4(x: Tensor, unit: Tensor) -> Tensor:
    q = blocks.nvfp4(x.float() * unit, 1.0)  # a number on the host could not be captured in a CUDA graph
    return _nvfp4(q.values, q.scales)
