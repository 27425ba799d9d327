"""Parts of a ragged batch: their offsets, as in the APIs' `indptr`, and their lengths as a flag lists them."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from pytest_flashinfer_perf.checking.check import Rows
from pytest_flashinfer_perf.spec.params import Fault


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
        indices: Tensor = self._rows[first:last] - part.start
        return indices


# Lists of lengths and counts as flags have them.

MOST_PARTS = 1 << 16


def listed(text: str) -> list[int]:
    """The numbers of a list such as 17,33,4x120; raises ValueError for what is none."""
    numbers: list[int] = []
    for word in text.split(","):
        times, _, number = word.rpartition("x")
        if not (number.isdecimal() and (times or "1").isdecimal()) or len(word) > 20:
            raise ValueError(f"must be whole numbers, as 17,33,4x120, got {text[:60]!r}")
        numbers += [int(number)] * min(int(times or 1), MOST_PARTS)
    return numbers


def as_list(numbers: Sequence[int]) -> str:
    """Write numbers as a list such as 17,33,4x120."""
    runs = ((number, sum(1 for _ in same)) for number, same in itertools.groupby(numbers))
    return ",".join(f"{times}x{number}" if times > 1 else str(number) for number, times in runs)


def list_faults(name: str, text: str | None, parts: tuple[str, int]) -> Iterator[Fault]:
    """Faults of a list that has to be of so many parts, by the parameter that says how many."""
    try:
        count = parts[1] if text is None else len(listed(text))
    except ValueError as error:
        yield name, str(error)
        return
    if count != parts[1]:
        yield name, f"has {count} numbers, {parts[0]} is {parts[1]}"
