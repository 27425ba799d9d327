"""`top_k`, which has no template in FlashInfer 0.7.2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.routines.derived.by_hand import Output, Template


def _init(
    *, batch_size: int, vocab_size: int = 128256, top_k: int = 50, device: str = "cuda", seed: int = 0
) -> dict[str, Any]:
    torch.manual_seed(seed)
    return {"input": torch.randn(batch_size, vocab_size, device=device), "k": top_k}


def _top(input: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values, indices = input.topk(k)
    return values, indices


CHOSEN = ("batch_size", "top_k")
TEMPLATES = {
    "flashinfer.topk.top_k": Template("topk", _init, _top, {"values": Output(CHOSEN), "indices": Output(CHOSEN)}),
}
