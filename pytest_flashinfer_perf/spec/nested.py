"""Find the tensors in nested inputs, and whether a tensor has numbers of both signs."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """A value in a container, its place there, and the function that puts another value in such a place."""

    put: Callable[[Any, Any, Any], None]
    place: Any
    value: Any


def tensors(tree: Any, above: tuple[int, ...] = ()) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists, dictionaries and dataclasses; none is entered within itself."""
    if isinstance(tree, Tensor):
        yield tree
    elif id(tree) not in above:
        for part in parts(tree):
            yield from tensors(part.value, (*above, id(tree)))


def reached(tree: Any) -> Iterator[Any]:
    """All that is no container, once: tensors, also in attributes of containers and of tensors, and other objects."""
    seen: dict[int, Any] = {}
    left = [tree]
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen[id(one)] = one
            if isinstance(one, Tensor) or not is_container(one):
                yield one
            left.extend(part.value for part in reversed(list(all_parts(one))))


def is_container(tree: Any) -> bool:
    is_dataclass = dataclasses.is_dataclass(tree) and not isinstance(tree, type)
    return isinstance(tree, (tuple, list, dict)) or is_dataclass


def parts(tree: Any) -> Iterator[Part]:
    """The items of a container, and the fields of a dataclass that have a value."""
    if isinstance(tree, (tuple, list)):
        items = tuple.__iter__(tree) if isinstance(tree, tuple) else list.__iter__(tree)  # its class may have another
        yield from (Part(list.__setitem__, place, value) for place, value in enumerate(items))
    elif isinstance(tree, dict):
        kind = OrderedDict if isinstance(tree, OrderedDict) else dict
        yield from (Part(kind.__setitem__, place, value) for place, value in kind.items(tree))
    elif is_container(tree):
        names = (field.name for field in dataclasses.fields(tree) if hasattr(tree, field.name))
        yield from (Part(object.__setattr__, name, getattr(tree, name)) for name in names)


def all_parts(tree: Any) -> Iterator[Part]:
    """Those, and the other attributes of a container or a tensor."""
    known = list(parts(tree))
    yield from known
    if isinstance(tree, Tensor) or is_container(tree):
        fields = {part.place for part in known if part.put is object.__setattr__}
        names = [name for name in (*getattr(tree, "__dict__", ()), *_slots(type(tree))) if name not in fields]
        yield from (Part(object.__setattr__, name, getattr(tree, name)) for name in names if hasattr(tree, name))


def _slots(kind: type) -> Iterator[str]:
    """The names that Python gives to the slots of a class."""
    for base in kind.__mro__:
        named = base.__dict__.get("__slots__", ())
        for name in (named,) if isinstance(named, str) else named:
            is_private = name.startswith("__") and not name.endswith("__")
            yield f"_{base.__name__.lstrip('_')}{name}" if is_private else name


def has_both_signs(values: Tensor) -> bool:
    """By the sign bits, in any type that numbers are stored in."""
    parts = torch.view_as_real(values) if values.is_complex() else values
    bits = parts.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[parts.itemsize])
    return bool(bits.min() < 0) and bool(bits.max() > 0)
