"""FlashInfer's dtype names and torch's."""

from __future__ import annotations

import torch

HALF = ("bfloat16", "float16")
FP8 = ("fp8_e4m3", "fp8_e5m2")

TORCH = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


def bytes_of(name: str) -> int:
    return TORCH[name].itemsize


def is_fp8(name: str) -> bool:
    return name in FP8
