"""Cold caches: rotate through enough copies of the inputs that each has left the L2 before it is used again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pytest_flashinfer_perf.engine.copies import clone, copier, extents, storages
from pytest_flashinfer_perf.spec.nested import tensors

__all__ = ["ColdSets", "clone", "prepare", "rotations", "tensors"]

CACHE_FACTOR = 5
MOST_COPIES = 1024
MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class ColdSets:
    """The argument sets to rotate through, the resulting cold-L2 mode, and the reason if another mode was requested.

    Sets that are `just_written` must leave the cache before the first call, which would write them back otherwise.
    """

    sets: tuple[Any, ...]
    mode: str
    note: str = ""
    just_written: bool = False


def prepare(  # noqa: PLR0913 - one argument per fact that decides the number
    arguments: Any,
    outputs: Sequence[Tensor],
    mode: str,
    *,
    cache_bytes: int,
    free_bytes: int,
    calls: int | None = None,
    on_gpu: bool = False,
    obstacle: str = "",
) -> ColdSets:
    """Make copies for rotation, or use the original alone if rotation is not requested or not possible.

    `calls` limits the number of copies, if the number of calls is known; `obstacle` is why there can be none. On a GPU
    what is too small to rotate is flushed, which takes microseconds there.
    """
    if mode != "rotate":
        return ColdSets((arguments,), mode)
    if obstacle:
        return ColdSets((arguments,), "flush", f"not rotated: {obstacle}")
    kept = storages(outputs)
    read = sum(end - start for start, end in extents(arguments, kept).values())
    if read == 0:
        return ColdSets((arguments,), "flush", "no tensor among the arguments to rotate")
    enough = rotations(read, cache_bytes)
    copies = enough if calls is None else min(enough, calls)
    if (needed := enough if on_gpu else copies) > MOST_COPIES:
        return ColdSets((arguments,), "flush", f"rotation would take {needed} copies of {read} bytes")
    if (copies - 1) * read > MEMORY_SHARE * free_bytes:
        return ColdSets((arguments,), "flush", f"{copies} copies of {read} bytes do not fit in memory")
    copy = copier(arguments, kept)
    return ColdSets((arguments, *(copy() for _ in range(copies - 1))), mode, just_written=enough > 1)


def rotations(read_bytes: int, cache_bytes: int) -> int:
    """The number of sets with 5 times the cache of other data between two uses of one; 1 if one is that large."""
    enough = CACHE_FACTOR * cache_bytes
    return 1 if read_bytes >= enough else math.ceil(enough / read_bytes) + 1
