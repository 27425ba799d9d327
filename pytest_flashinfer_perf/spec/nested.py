"""The tensors of inputs, however they are nested."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists, dictionaries and dataclasses."""
    if isinstance(tree, Tensor):
        yield tree
    for child in _children(tree):
        yield from tensors(child)


def _children(tree: Any) -> Sequence[Any]:
    if isinstance(tree, (tuple, list)):
        return tree
    if isinstance(tree, dict):
        return list(tree.values())
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [getattr(tree, f.name) for f in dataclasses.fields(tree)]
    return ()
