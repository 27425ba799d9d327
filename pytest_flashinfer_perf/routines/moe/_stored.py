"""Storage formats of a MoE's tokens and weights, one class each, and the values that they represent.

Weights are [experts, rows, columns]; of the first ones, the rows of what is gated come before those of its gate.
Scales of blocks are in linear order here; backends convert them in `takes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines._narrow import GROUP, MX_BLOCK, NV_BLOCK, Blocked, Groupwise
from pytest_flashinfer_perf.routines.moe._routing import ExpertWeights

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


class StoredExperts(Protocol):
    @property
    def x(self) -> Tensor:
        """Tokens, as they are stored."""
        ...

    def layer(self) -> ExpertLayer: ...

    def _asdict(self) -> dict[str, Any]: ...


def of_experts(stored: StoredExperts) -> list[Tensor]:
    """The tensors of which an expert's part is read only if a token chose it: those of its first and second weights."""
    named = stored._asdict().items()
    return [tensor for name, tensor in named if name.startswith(("first", "second"))]


class Plain(NamedTuple):
    x: Tensor  # [tokens, hidden]
    first: Tensor
    second: Tensor

    def layer(self) -> ExpertLayer:
        return ExpertLayer(self.x, self.first.__getitem__, self.second.__getitem__)


def in_16_bits(x: Tensor, first: ExpertWeights, second: ExpertWeights) -> Plain:
    (first_weights,), (second_weights,) = (_by_expert(weights, lambda expert: (expert,)) for weights in (first, second))
    return Plain(x, first_weights, second_weights)


class Fp8(NamedTuple):
    """A scale for the tokens, one for each expert's weights, and one for intermediate values before they become FP8."""

    x: Tensor
    unit: Tensor  # the tokens' scale
    first: Tensor
    by_first: Tensor  # [experts], the tokens' scale included
    between: Tensor
    second: Tensor
    by_second: Tensor  # [experts], `between` taken out again

    def layer(self) -> ExpertLayer:
        return ExpertLayer(
            self.x,
            self.first.__getitem__,
            self.second.__getitem__,
            self.by_first,
            self.by_second,
            lambda act: _to_fp8(act * self.between),
        )


def in_fp8(x: Tensor, first: ExpertWeights, second: ExpertWeights) -> Fp8:
    tokens, (between,) = _narrow.per_tensor(x), _numbers(x, BETWEEN)
    (firsts, by_first), (seconds, by_second) = (_by_expert(weights, _expert_in_fp8) for weights in (first, second))
    (unit,) = _numbers(x, tokens.scale)
    return Fp8(tokens.values, unit, firsts, by_first * unit, between, seconds, by_second / between)


def _expert_in_fp8(expert: Tensor) -> tuple[Tensor, ...]:
    quantised = _narrow.per_tensor(expert.float())
    return quantised.values, *_numbers(expert, quantised.scale)


class Int4(NamedTuple):
    """INT4 weights in units of their expert's; tokens and intermediate values in 16 bits, made FP8 by the kernel."""

    x: Tensor
    unit: Tensor  # [hidden], by which tokens are multiplied before they become FP8
    first: Tensor
    first_scales: Tensor  # of each 128 of a row
    by_first: Tensor  # [experts], `unit` taken out again
    between: Tensor  # [intermediate]
    second: Tensor
    second_scales: Tensor
    by_second: Tensor  # [experts], `between` taken out again

    def layer(self) -> ExpertLayer:
        return ExpertLayer(
            _to_fp8(self.x * self.unit),
            lambda number: Blocked(self.first[number], self.first_scales[number], GROUP).dequantised(),
            lambda number: Blocked(self.second[number], self.second_scales[number], GROUP).dequantised(),
            self.by_first,
            self.by_second,
            lambda act: _to_fp8(act * self.between),
        )


def in_int4(x: Tensor, first: ExpertWeights, second: ExpertWeights, dtype: torch.dtype) -> Int4:
    """Factors of tokens are powers of two, so that they are rounded once, to FP8."""
    unit = 2.0 ** math.floor(math.log2(torch.finfo(torch.float8_e4m3fn).max / _narrow.largest(x)))
    (firsts, first_scales, of_first), (seconds, second_scales, of_second) = (
        _by_expert(weights, _expert_in_int4) for weights in (first, second)
    )
    of_x, of_act = (x.new_full((q.shape[-1] * 2,), by, dtype=dtype) for q, by in ((firsts, unit), (seconds, BETWEEN)))
    by_first, by_second = of_first / unit, of_second / BETWEEN
    return Int4(x.to(dtype), of_x, firsts, first_scales, by_first, of_act, seconds, second_scales, by_second)


def _expert_in_int4(expert: Tensor) -> tuple[Tensor, ...]:
    unit = _narrow.largest(expert)
    quantised = _narrow.int4(expert.float() / unit)
    return quantised.values, quantised.scales, *_numbers(expert.float(), unit)


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

    def layer(self) -> ExpertLayer:
        return ExpertLayer(
            _rounded_to_nvfp4(self.x, self.unit) if self.x_blocks is None else _nvfp4(self.x, self.x_blocks),
            lambda number: _nvfp4(self.first[number], self.first_blocks[number]),
            lambda number: _nvfp4(self.second[number], self.second_blocks[number]),
            self.by_first,
            self.by_second,
            lambda act: _rounded_to_nvfp4(act, self.between),
        )


def in_nvfp4(x: Tensor, first: ExpertWeights, second: ExpertWeights, *, left: torch.dtype | None = None) -> Nvfp4:
    """Tokens are left in this type, if any, for the kernel to quantise."""
    unit = _narrow.nvfp4_global_scale(x)
    tokens = _narrow.nvfp4(x, unit)
    by_x, between = _numbers(x, unit, BETWEEN_FP4)
    parts = (_by_expert(weights, _expert_in_nvfp4) for weights in (first, second))
    (firsts, first_blocks, of_first), (seconds, second_blocks, of_second) = parts
    return Nvfp4(
        tokens.values if left is None else x.to(left),
        tokens.scales if left is None else None,
        by_x,
        firsts,
        first_blocks,
        1.0 / (by_x * of_first),
        between,
        seconds,
        second_blocks,
        1.0 / (between * of_second),
    )


def _expert_in_nvfp4(expert: Tensor) -> tuple[Tensor, ...]:
    unit = _narrow.nvfp4_global_scale(expert)
    quantised = _narrow.nvfp4(expert, unit)
    return quantised.values, quantised.scales, *_numbers(expert, unit)


class Mxfp4(NamedTuple):
    """Weights in MXFP4; tokens in MXFP8, or in 16 bits, without scales."""

    x: Tensor
    x_blocks: Tensor | None  # [tokens, hidden / 32], exponents
    first: Tensor
    first_blocks: Tensor
    second: Tensor
    second_blocks: Tensor

    def layer(self) -> ExpertLayer:
        return ExpertLayer(
            self.x if self.x_blocks is None else Blocked(self.x, self.x_blocks, MX_BLOCK).dequantised(),
            lambda number: Blocked(self.first[number], self.first_blocks[number], MX_BLOCK).dequantised(),
            lambda number: Blocked(self.second[number], self.second_blocks[number], MX_BLOCK).dequantised(),
        )


def in_mxfp4(x: Tensor, first: ExpertWeights, second: ExpertWeights, *, left: torch.dtype | None = None) -> Mxfp4:
    """Tokens are in MXFP8, or left in this type."""
    tokens = _narrow.mxfp8(x)
    of_x = (tokens.values, tokens.scales) if left is None else (x.to(left), None)
    return Mxfp4(of_x[0], of_x[1], *_by_expert(first, _expert_in_mxfp4), *_by_expert(second, _expert_in_mxfp4))


def _expert_in_mxfp4(expert: Tensor) -> tuple[Tensor, Tensor]:
    quantised = _narrow.mxfp4(expert)
    return quantised.values, quantised.scales


class Blockwise(NamedTuple):
    """FP8 as DeepSeek has it: a scale for each 128 x 128 of weights, and for each 128 of a token unless it is left."""

    x: Tensor
    x_scales: Tensor | None  # [tokens, hidden / 128]
    first: Tensor
    first_scales: Tensor
    second: Tensor
    second_scales: Tensor

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


def in_blocks(x: Tensor, first: ExpertWeights, second: ExpertWeights, *, left: torch.dtype | None = None) -> Blockwise:
    """Tokens are in FP8 too, or left in this type."""
    tokens = _narrow.groupwise(x, 1)
    of_x = (tokens.values, tokens.scales) if left is None else (x.to(left), None)
    return Blockwise(of_x[0], of_x[1], *_by_expert(first, _expert_in_tiles), *_by_expert(second, _expert_in_tiles))


def _expert_in_tiles(expert: Tensor) -> tuple[Tensor, Tensor]:
    quantised = _narrow.groupwise(expert, tile_rows=GROUP)
    return quantised.values, quantised.scales


def in_tiles(scales: Tensor) -> Tensor:
    """Each expert's in tiles of 128 x 4."""
    return torch.stack([_narrow.swizzled_128x4(of_expert.view(torch.uint8)) for of_expert in scales])


def _numbers(like: Tensor, *values: float) -> list[Tensor]:
    return [torch.tensor(value, device=like.device) for value in values]


def _by_expert(weights: ExpertWeights, quantise: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The parts that `quantise` makes of an expert, of all experts: one after another in memory for all of them."""
    of_all_experts: list[Tensor] = []
    for number, expert in enumerate(weights):
        parts = quantise(expert)
        of_all_experts = of_all_experts or [part.new_empty(len(weights), *part.shape) for part in parts]
        for of_all, part in zip(of_all_experts, parts, strict=True):
            of_all[number] = part
    return tuple(of_all_experts)


def _to_fp8(x: Tensor) -> Tensor:
    limit = torch.finfo(torch.float8_e4m3fn).max
    return x.clamp(-limit, limit).to(torch.float8_e4m3fn)


def _nvfp4(values: Tensor, scales: Tensor) -> Tensor:
    """Scales in units of the tensor's scale."""
    return Blocked(values, scales, NV_BLOCK).dequantised()


def _rounded_to_nvfp4(x: Tensor, unit: Tensor) -> Tensor:
    q = _narrow.nvfp4(x.float() * unit, 1.0)  # a number on the host could not be captured in a CUDA graph
    return _nvfp4(q.values, q.scales)
