"""Restore arguments that a call changes, outside of the timed part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from pytest_flashinfer_perf.timing.cold import ColdSets
from pytest_flashinfer_perf.timing.target import Target

MOST_PARTS = 4


@dataclass(frozen=True)
class Restore:
    """Tensors that calls change, each with what it held before the first of them."""

    kept: tuple[tuple[Tensor, Tensor], ...]
    sets: int

    def __call__(self) -> None:
        for changed, before in self.kept:
            changed.copy_(before)

    def parts(self, calls: int) -> Iterator[int]:
        """Calls between two restorations: once round the argument sets, or more where that would be too often."""
        each = max(self.sets, -(-calls // MOST_PARTS))
        yield from (min(each, calls - done) for done in range(0, calls, each))


def of(target: Target, sets: ColdSets) -> Restore | None:
    changed = [tensor for args, _ in sets.sets for tensor in target.changed(args)]
    return Restore(tuple((tensor, tensor.clone()) for tensor in changed), len(sets.sets)) if changed else None
