"""Where each part of a ragged batch starts, as the APIs' `indptr` say it."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def indptr(lens: Tensor) -> Tensor:
    starts = torch.zeros(lens.shape[0] + 1, dtype=torch.int32, device=lens.device)
    starts[1:] = lens.cumsum(0)
    return starts


def slices(indptr: Tensor) -> list[slice]:
    """Each part's rows, on the host."""
    return [slice(start, end) for start, end in itertools.pairwise(indptr.tolist())]
