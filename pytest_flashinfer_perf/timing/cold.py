"""Cold caches: rotate through enough copies of the inputs that each has left the L2 before it is used again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pytest_flashinfer_perf.spec.nested import tensors

CACHE_FACTOR = 5
MOST_COPIES = 1024
MEMORY_SHARE = 0.5
ALIGNMENT = 512


@dataclass(frozen=True)
class ColdSets:
    """The argument sets to rotate through, the resulting cold-L2 mode, and the reason if another mode was requested.

    `used_once` sets are too few to rotate: each is for one call, and must leave the cache before the first call.
    """

    sets: tuple[Any, ...]
    mode: str
    note: str = ""
    used_once: bool = False


def prepare(  # noqa: PLR0913 - one argument per fact that decides the number
    arguments: Any,
    outputs: Sequence[Tensor],
    mode: str,
    *,
    cache_bytes: int,
    free_bytes: int,
    calls: int | None = None,
) -> ColdSets:
    """Make copies for rotation, or use the original alone if rotation is not requested or not possible.

    `calls` limits the number of copies, if the number of calls is known.
    """
    if mode != "rotate":
        return ColdSets((arguments,), mode)
    kept = storages(outputs)
    read = sum(end - start for start, end in _extents(arguments, kept).values())
    if read == 0:
        return ColdSets((arguments,), "flush", "no tensor among the arguments to rotate")
    enough = rotations(read, cache_bytes)
    copies = enough if calls is None else min(enough, calls)
    if copies > MOST_COPIES:
        return ColdSets((arguments,), "flush", f"rotation would take {copies} copies of {read} bytes")
    if (copies - 1) * read > MEMORY_SHARE * free_bytes:
        return ColdSets((arguments,), "flush", f"{copies} copies of {read} bytes do not fit in memory")
    copy = copier(arguments, kept)
    return ColdSets((arguments, *(copy() for _ in range(copies - 1))), mode, used_once=copies < enough)


def rotations(read_bytes: int, cache_bytes: int) -> int:
    """The number of sets with 5 times the cache of other data between two uses of one; 1 if one is that large."""
    enough = CACHE_FACTOR * cache_bytes
    return 1 if read_bytes >= enough else math.ceil(enough / read_bytes) + 1


def clone(arguments: Any, kept: set[int]) -> Any:
    """A deep copy in which views of one storage stay views of one; tensors with a `kept` storage are not copied."""
    return copier(arguments, kept)()


def copier(arguments: Any, kept: set[int]) -> Callable[[], Any]:
    """A function that makes such copies; what they share is computed once."""
    extents = _extents(arguments, kept)
    parts = {key: _bytes_of(arguments, key, extent) for key, extent in extents.items()}

    def copy() -> Any:
        fresh = {key: part.clone().untyped_storage() for key, part in parts.items()}

        def moved(tensor: Tensor) -> Tensor:
            key = storage(tensor)
            if key not in fresh:
                return tensor
            offset = tensor.storage_offset() - extents[key][0] // tensor.itemsize
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            return view.set_(fresh[key], offset, tensor.shape, tensor.stride())

        return _map(moved, arguments)

    return copy


def _bytes_of(arguments: Any, key: int, extent: tuple[int, int]) -> Tensor:
    source = next(t for t in tensors(arguments) if storage(t) == key)
    raw = torch.empty(0, dtype=torch.uint8, device=source.device).set_(source.untyped_storage())
    return raw[slice(*extent)]


def _extents(arguments: Any, kept: set[int]) -> dict[int, tuple[int, int]]:
    """The range of bytes that tensors cover in each storage, from an aligned start."""
    found: dict[int, tuple[int, int]] = {}
    for tensor in tensors(arguments):
        key = storage(tensor)
        if key in kept or tensor.numel() == 0 or not key:  # one that `prebuild` pretends has no contents to copy
            continue
        low, high = _covered(tensor)
        before = found.get(key, (low, high))
        found[key] = (min(low, before[0]), max(high, before[1]))
    return found


def _covered(tensor: Tensor) -> tuple[int, int]:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    first = int(tensor.storage_offset()) * tensor.itemsize
    return first // ALIGNMENT * ALIGNMENT, first + (reach + 1) * tensor.itemsize


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def storages(tree: Any) -> set[int]:
    return {storage(tensor) for tensor in tensors(tree)}


def _map(change: Callable[[Tensor], Tensor], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_map(change, child) for child in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(_map(change, child) for child in tree)
    if isinstance(tree, dict):
        return {key: _map(change, child) for key, child in tree.items()}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return dataclasses.replace(
            tree, **{f.name: _map(change, getattr(tree, f.name)) for f in dataclasses.fields(tree)}
        )
    return tree
