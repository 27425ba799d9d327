"""Normally distributed tensors, FP8 ones scaled by their own largest magnitude."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines._quantise import blocks
from pytest_flashinfer_perf.spec.dtypes import TORCH, is_fp8


class Scaled(NamedTuple):
    """The stored values, and the scale that restores the drawn ones."""

    values: Tensor
    scale: float


def unquantised(shape: tuple[int, ...], dtype: str, rand: torch.Generator) -> Tensor:
    """Draw in bfloat16 if the values are quantised to FP8 afterwards."""
    made_in = torch.bfloat16 if is_fp8(dtype) else TORCH[dtype]
    return torch.randn(shape, dtype=made_in, device=rand.device, generator=rand)


def normal(shape: tuple[int, ...], dtype: str, rand: torch.Generator) -> Scaled:
    drawn = unquantised(shape, dtype, rand)
    if not is_fp8(dtype):
        return Scaled(drawn, 1.0)
    quantised = blocks.per_tensor(drawn, TORCH[dtype])
    return Scaled(quantised.values, quantised.scale)
