"""FlashInfer's names of dtypes, and torch's."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from pytest_flashinfer_perf.errors import unknown

HALF = ("bfloat16", "float16")
FP8 = ("fp8_e4m3", "fp8_e5m2")
TORCH = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
OURS = {str(dtype).removeprefix("torch."): name for name, dtype in TORCH.items()}  # the same by torch's names
# Types that FLOPs may be computed in: those of tensors, and those that no tensor has.
COMPUTED_IN = (*TORCH, "tf32", "fp4", "int8")


def computed_in(stated: str | None, tensors: Iterable[torch.Tensor]) -> str:
    """The stated type, or that of the first tensor; empty without tensors."""
    if stated is not None and stated not in COMPUTED_IN:
        raise ValueError(f"flops_dtype: {unknown(str(stated), COMPUTED_IN)}")
    if stated is not None:
        return stated
    first = next((tensor.dtype for tensor in tensors), None)
    named = "" if first is None else str(first).removeprefix("torch.")
    return OURS.get(named, named)


def bytes_of(name: str) -> int:
    return TORCH[name].itemsize


def is_fp8(name: str) -> bool:
    return name in FP8
