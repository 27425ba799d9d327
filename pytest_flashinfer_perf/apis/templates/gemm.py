"""Products whose templates make operands that only other GPUs' backends take."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.apis.templates import Mended
from pytest_flashinfer_perf.routines._quantise import blocks


def _fp8_init(*, M: int, N: int = 1536, K: int = 7168, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    """Weights [N, K] as they are; FlashInfer's template prepares them for its low-latency kernel."""
    torch.manual_seed(seed)
    a, b = (blocks.per_tensor(torch.randn(rows, K, dtype=torch.bfloat16, device=device)) for rows in (M, N))
    return {"a": a.values, "b": b.values, "alpha": torch.tensor(a.scale * b.scale, device=device)}


def _fp8(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    return a.float() @ b.float().mT * alpha


def _router_init(*, M: int, K: int = 6144, N: int = 256, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    a, b = (torch.randn(rows, K, dtype=torch.bfloat16, device=device) for rows in (M, N))
    return {"mat_a": a, "mat_b": b.mT, "out": torch.empty(M, N, dtype=torch.float32, device=device)}


TEMPLATES = {
    "flashinfer.gemm.gemm_base.mm_fp8": Mended(_fp8_init, _fp8),
    "flashinfer.gemm.routergemm.mm_M1_16_K6144_N256": Mended(_router_init),
}
