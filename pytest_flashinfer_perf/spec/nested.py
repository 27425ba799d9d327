"""Find the tensors in nested inputs, and whether a tensor has numbers of both signs."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

SIMPLE = frozenset((int, float, bool, str, type(None)))


class Part(NamedTuple):
    """A value in a container, its place there, and the function that puts another value in such a place."""

    put: Callable[[Any, Any, Any], None]
    place: Any
    value: Any


def tensors(tree: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists, dictionaries and dataclasses, each of which is entered once."""
    return (one for one in _walk(tree, _values) if isinstance(one, Tensor))


def named_tensors(tree: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with the names that lead to it, such as `stored.x`."""
    if isinstance(tree, Tensor):
        yield name, tree
        return
    fields = getattr(tree, "_fields", ()) if isinstance(tree, tuple) else ()
    for part in parts(tree):
        place = fields[part.place] if fields else part.place
        yield from named_tensors(part.value, f"{name}.{place}".lstrip("."))


def reached(tree: Any) -> Iterator[Any]:
    """All that is no container: tensors, also in attributes of containers and of tensors, and other objects."""
    return _walk(tree, lambda one: [*_values(one), *_attributes(one).values()])


def _walk(tree: Any, inside: Callable[[Any], Sequence[Any]]) -> Iterator[Any]:
    entered: dict[int, Any] = {}
    left = [tree]
    while left:
        one = left.pop()
        is_inside = type(one) not in SIMPLE and is_container(one)
        if not is_inside:
            yield one
        if (is_inside or isinstance(one, Tensor)) and id(one) not in entered:
            entered[id(one)] = one
            left.extend(reversed(inside(one)))


def is_container(tree: Any) -> bool:
    return isinstance(tree, (tuple, list, dict)) or hasattr(type(tree), "__dataclass_fields__")


def parts(tree: Any) -> Iterator[Part]:
    """The items of a container, or the fields of a dataclass that have a value, and its other attributes."""
    if isinstance(tree, dict):
        kind = OrderedDict if isinstance(tree, OrderedDict) else dict
        yield from (Part(kind.__setitem__, place, value) for place, value in kind.items(tree))
    elif isinstance(tree, (tuple, list)):
        yield from (Part(list.__setitem__, place, value) for place, value in enumerate(_values(tree)))
    else:
        yield from (Part(object.__setattr__, place, value) for place, value in _fields(tree).items())
    yield from (Part(object.__setattr__, place, value) for place, value in _attributes(tree).items())


def _values(tree: Any) -> Sequence[Any]:
    """The values of a container, read without methods of its own class, which may do something else."""
    if isinstance(tree, tuple):
        return list(tuple.__iter__(tree))
    if isinstance(tree, list):
        return list(list.__iter__(tree))
    return list(dict.values(tree)) if isinstance(tree, dict) else list(_fields(tree).values())


def _fields(tree: Any) -> dict[str, Any]:
    if not hasattr(type(tree), "__dataclass_fields__"):
        return {}
    names = (field.name for field in dataclasses.fields(tree))
    return {name: getattr(tree, name) for name in names if hasattr(tree, name)}


def _attributes(tree: Any) -> dict[str, Any]:
    """The attributes of a tensor, of a container's class, and of a dataclass beside its fields."""
    if type(tree) in (tuple, list, dict):
        return {}
    own = [name for name in (*getattr(tree, "__dict__", ()), *_slots(type(tree))) if hasattr(tree, name)]
    declared = () if isinstance(tree, (tuple, list, dict)) else _fields(tree)
    return {name: getattr(tree, name) for name in own if name not in declared}


def _slots(kind: type) -> Iterator[str]:
    """The names that Python gives to the slots of a class."""
    for base in kind.__mro__:
        named = base.__dict__.get("__slots__", ())
        for name in (named,) if isinstance(named, str) else named:
            is_private = name.startswith("__") and not name.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{name}" if is_private else name


def has_both_signs(values: Tensor) -> bool:
    """Whether there are values of both signs, by the sign bits, in any type that numbers are stored in."""
    parts = torch.view_as_real(values) if values.is_complex() else values
    bits = parts.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[parts.itemsize])
    return bool(bits.min() < 0) and bool(bits.max() > 0)
