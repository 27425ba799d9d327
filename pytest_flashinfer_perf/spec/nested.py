"""Find the tensors in nested inputs, and whether a tensor has numbers of both signs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists, dictionaries and dataclasses."""
    return (tensor for _, tensor in named_tensors(tree))


def named_tensors(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with the names that lead to it, such as `stored.x`."""
    if isinstance(tree, Tensor):
        yield name, tree
    for part, child in _children(tree):
        yield from named_tensors(child, f"{name}.{part}".lstrip("."))


def _children(tree: Any) -> Iterable[tuple[object, Any]]:
    if isinstance(tree, (tuple, list)):
        return zip(getattr(tree, "_fields", range(len(tree))), tree, strict=True)
    if isinstance(tree, dict):
        return tree.items()
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return [(f.name, getattr(tree, f.name)) for f in dataclasses.fields(tree)]
    return ()


def has_both_signs(values: Tensor) -> bool:
    """By the sign bits, in any type that numbers are stored in."""
    parts = torch.view_as_real(values) if values.is_complex() else values
    bits = parts.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[parts.itemsize])
    return bool(bits.min() < 0) and bool(bits.max() > 0)
