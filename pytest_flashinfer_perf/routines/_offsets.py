"""Offsets of the parts of a ragged batch, as in the APIs' `indptr`."""

from __future__ import annotations

import itertools
from bisect import bisect_left

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking.check import Rows


def indptr(lens: Tensor) -> Tensor:
    starts = torch.zeros(lens.shape[0] + 1, dtype=torch.int32, device=lens.device)
    starts[1:] = lens.cumsum(0)
    return starts


def slices(indptr: Tensor) -> list[slice]:
    """Each part's rows, on the host."""
    return [slice(start, end) for start, end in itertools.pairwise(indptr.tolist())]


def edges(indptr: Tensor) -> Rows:
    """The first and last rows of the parts of a ragged batch."""
    parts = [part for part in slices(indptr) if part.start < part.stop]
    ends = sorted({row for part in parts for row in (part.start, part.stop - 1)})
    return Rows(int(indptr[-1]), torch.tensor(ends, device=indptr.device))


class ChosenRows:
    """The wanted rows of each part: all, or those of a sample."""

    def __init__(self, rows: Tensor | None) -> None:
        self._rows = rows
        self._sorted = [] if rows is None else rows.tolist()

    def of(self, part: slice) -> Tensor | slice:
        """Indices of the wanted rows of a part; empty if there are none."""
        if self._rows is None:
            return slice(None)
        first, last = bisect_left(self._sorted, part.start), bisect_left(self._sorted, part.stop)
        asked_for: Tensor = self._rows[first:last] - part.start
        return asked_for
