"""FP8 with a scale for each 1x128 of the activations and each 128x128 of the weights: flags, operands, meaning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines._quantise import blocks, layouts
from pytest_flashinfer_perf.routines.gemm._shared import Fp8Product, Product, drawn
from pytest_flashinfer_perf.spec.dtypes import TORCH
from pytest_flashinfer_perf.spec.params import Fault, flag


@dataclass(frozen=True)
class Tiled(Product):
    """Scales for tiles of the operands."""

    tile_size: int = flag("rows and columns that share a scale", default=blocks.GROUP, letter="t", minimum=1)
    scale_major_mode: str = flag("order of the scales", default="MN", choices=("MN", "K"))
    mma_sm: int = flag("cutlass: SMs that share a tile, 1 or 2", default=1, letter="sm", minimum=1)

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        return {**super().fitted(drawn), "k": -(-drawn["k"] // blocks.GROUP) * blocks.GROUP}

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.tile_size != blocks.GROUP:
            yield "tile_size", f"the kernels have scales for {blocks.GROUP} columns, not {self.tile_size}"
        if self.k % blocks.GROUP:
            yield "k", f"{self.k} is not a multiple of {blocks.GROUP}"
        if self.mma_sm > 2:
            yield "mma_sm", f"must be 1 or 2, got {self.mma_sm}"


@dataclass(frozen=True)
class GroupwiseParams(Fp8Product, Tiled):
    """The flags of both routines."""


def limits(p: GroupwiseParams, backend: str) -> Iterator[str]:
    if backend == "cutile" and p.scale_major_mode != "K":
        yield "cutile takes K-major scales only: set scale_major_mode to K"


def activations(p: GroupwiseParams, rows: int, rand: torch.Generator) -> tuple[Tensor, Tensor]:
    """Values [rows, k], and their scales in the order asked for."""
    return _in_order(p, _drawn(rand, (rows, p.k), 1, p.input_dtype))


def weights(p: GroupwiseParams, rand: torch.Generator, *groups: int) -> tuple[Tensor, Tensor]:
    """Values [..., n, k], and their scales in the order asked for."""
    return _in_order(p, _drawn(rand, (*groups, p.n, p.k), blocks.GROUP, p.mat2_dtype))


def _in_order(p: GroupwiseParams, q: blocks.Groupwise) -> tuple[Tensor, Tensor]:
    return q.values, layouts.mn_major(q.scales) if p.scale_major_mode == "MN" else q.scales


def _drawn(rand: torch.Generator, shape: tuple[int, ...], tile_rows: int, dtype: str) -> blocks.Groupwise:
    """Draw tiles of different magnitudes, so that a wrong scale is found."""
    *groups, rows, k = shape
    tiles = (*groups, -(-rows // tile_rows), k // blocks.GROUP)
    sizes = torch.randint(-2, 3, tiles, device=rand.device, generator=rand).float().exp2()
    by_row = sizes.repeat_interleave(tile_rows, -2)[..., :rows, :]
    values = drawn(rand, *shape) * by_row.repeat_interleave(blocks.GROUP, -1)[..., :k]
    return blocks.groupwise(values, tile_rows, TORCH[dtype])


def meant_activations(p: GroupwiseParams, values: Tensor, scales: Tensor) -> Tensor:
    """The values that the kernel multiplies."""
    return blocks.Groupwise(values, linear(p, scales), 1).dequantised()


def meant_weights(p: GroupwiseParams, values: Tensor, scales: Tensor) -> Tensor:
    return blocks.Groupwise(values, linear(p, scales), blocks.GROUP).dequantised()


def linear(p: GroupwiseParams, scales: Tensor) -> Tensor:
    """A view of the scales [..., rows, k / 128], whatever their order."""
    return scales.mT if p.scale_major_mode == "MN" else scales
