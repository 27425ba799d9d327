"""Decode an API's output so that equal answers compare equal: packed numbers, sets in any order, scales."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.apis import exceptions, given
from pytest_flashinfer_perf.apis.known import Api
from pytest_flashinfer_perf.checking.check import BY_DTYPE, EXACT, Tolerance
from pytest_flashinfer_perf.routines._quantise import grids
from pytest_flashinfer_perf.routines.moe._shared import ROUNDED_ON_THE_WAY
from pytest_flashinfer_perf.spec.nested import tensors

# A value half way between two e2m1 codes may be rounded to either, as up to 3 % of them may be. Neighbouring codes
# above zero differ by at most half of the larger one.
PACKED = Tolerance(0.34, 0.6, 0.02, matched=0.97)
NARROW = {
    dtype: replace(BY_DTYPE[dtype], matched=0.995)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)  # whose values are further apart than these bounds
}
HALF = (torch.bfloat16, torch.float16)
EXPONENTS = Tolerance(0.0, 0.0, 0.02, matched=0.97, absolute=1.0)  # scales that are powers of two: one step off


def is_packed(api: Api, name: str, dtype: torch.dtype) -> bool:
    """Whether it holds two e2m1 numbers in each byte."""
    output = given.declared(api, name)
    last = output.dims[-1] if output and output.dims else ""
    return dtype == torch.uint8 and ("packed" in last or "div_2" in last)


def is_unordered(api: Api, name: str, dtype: torch.dtype) -> bool:
    """Whether it holds indices of the largest numbers, which may come in any order."""
    return "top" in api.label and "indices" in name and not dtype.is_floating_point


def meant(api: Api, name: str, tensor: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """The numbers to compare: unpacked ones, or those that indices choose; else the output itself."""
    if is_packed(api, name, tensor.dtype):
        return grids.from_e2m1(grids.unpacked(tensor))
    if is_unordered(api, name, tensor.dtype):
        return _numbers_at(tensor, arguments.values()).sort(-1).values
    return tensor.sort(-1).values if name in exceptions.UNORDERED.get(api.label, ()) else tensor


def _numbers_at(indices: Tensor, arguments: Iterable[Any]) -> Tensor:
    """The numbers that these indices choose from their rows, since equal numbers may be chosen in any order.

    The rows are the first argument of a fitting shape. Index -1 chooses nothing: less than any number stands for it.
    """
    for rows in tensors(tuple(arguments)):
        if rows.is_floating_point() and rows.shape[:-1] == indices.shape[:-1] and indices.max() < rows.shape[-1]:
            chosen = rows.float().gather(-1, indices.clamp(min=0).long())
            return chosen.where(indices >= 0, rows.min() - 1)
    return indices


def is_rounded_inside(api: Api, dtype: torch.dtype) -> bool:
    """Whether experts have narrow weights: their kernel rounds what is between its two products, by scales it finds."""
    return api.operation == "moe" and dtype in HALF and any("scale" in one.name for one in api.inputs)


def tolerance(api: Api, name: str, dtype: torch.dtype) -> Tolerance:
    """The tolerance for the output's type, or for what is rounded on the way to it."""
    if is_rounded_inside(api, dtype):
        return ROUNDED_ON_THE_WAY
    if is_packed(api, name, dtype):
        return PACKED
    if dtype == torch.uint8 and "quant" in f"{api.operation} {api.label}":
        return EXPONENTS
    return {**BY_DTYPE, **NARROW}.get(dtype, EXACT)
