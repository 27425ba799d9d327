"""Products whose templates make operands that no kernel takes on Hopper, or in another layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines import _narrow
from pytest_flashinfer_perf.routines.derived.by_hand import Mended


def _fp8_init(*, M: int, N: int = 1536, K: int = 7168, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    """Weights [N, K] as they are; FlashInfer's template prepares them for its low-latency kernel."""
    torch.manual_seed(seed)
    a, b = (_narrow.per_tensor(torch.randn(rows, K, dtype=torch.bfloat16, device=device)) for rows in (M, N))
    return {"a": a.values, "b": b.values, "alpha": torch.tensor(a.scale * b.scale, device=device)}


def _fp8(a: Tensor, b: Tensor, alpha: Tensor) -> Tensor:
    return a.float() @ b.float().mT * alpha


def _router_init(*, M: int, K: int = 6144, N: int = 256, device: str = "cuda", seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    a, b = (torch.randn(rows, K, dtype=torch.bfloat16, device=device) for rows in (M, N))
    return {"mat_a": a, "mat_b": b.mT, "out": torch.empty(M, N, dtype=torch.float32, device=device)}


def _scales_by_columns(usual: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The kernel reads the scales of each block of columns one after the other, a multiple of 4 of them."""

    def init(**axes: Any) -> dict[str, Any]:
        made = usual(**axes)
        scales = made["input_scale"]
        held = torch.zeros(scales.shape[1], -(-len(scales) // 4) * 4, dtype=scales.dtype, device=scales.device)
        held[:, : len(scales)] = scales.mT
        return {**made, "input_scale": held.mT[: len(scales)]}

    return init


TEMPLATES = {
    "flashinfer.gemm.gemm_base.fp8_blockscale_gemm_sm90": Mended(around_init=_scales_by_columns),
    "flashinfer.gemm.gemm_base.mm_fp8": Mended(_fp8_init, _fp8),
    "flashinfer.gemm.routergemm.mm_M1_16_K6144_N256": Mended(_router_init),
}
