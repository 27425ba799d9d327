"""Read dataclasses from JSON by the types of their fields, and write them; errors name the field."""

from __future__ import annotations

import collections.abc
import functools
import json
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.printing import safe

T = TypeVar("T")
Reader = Callable[[Any, str], Any]

SCALARS: dict[Any, tuple[str, tuple[type, ...]]] = {
    str: ("text", (str,)),
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
}

LARGEST = 1 << 64  # of whole numbers: more than any address, count or size


class FieldError(FlashinferPerfError):
    """A value that does not fit its field; the sentence names both, on one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(safe(sentence))


def read(kind: Callable[..., T], values: Any, where: str) -> T:
    """An object of this dataclass; a part whose name is not a key is read from the same, flat, values."""
    if not isinstance(values, Mapping):
        raise FieldError(f"{where} must be an object, got {shown(values)}")
    arguments = {name: value for name, part in _parts(kind) if (value := part(values, where)) is not MISSING}
    return kind(**arguments)


def parsed(text: str) -> Any:
    """A value of JSON, which has neither the NaN nor the infinities that Python would read."""
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def value(kind: Any, json_value: Any, where: str) -> Any:
    """A value of this type."""
    return _reader(kind)(json_value, where)


def object_in(values: Mapping[str, Any], name: str, where: str = "") -> Mapping[str, Any]:
    """A member that is an object of any content; empty where there is none."""
    value = values.get(name) or {}
    if not isinstance(value, Mapping):
        raise FieldError(f"{where}{': ' if where else ''}{name} must be an object, got {shown(value)}")
    return value


@functools.cache
def types_of(kind: Any) -> dict[str, Any]:
    """The type of each field, with its description if it has one."""
    return typing.get_type_hints(kind, include_extras=True)


@functools.cache
def _parts(kind: Any) -> list[tuple[str, Reader]]:
    types = types_of(kind)
    return [(field.name, _part(field, types[field.name])) for field in fields(kind)]


def _part(field: Field[Any], kind: Any) -> Reader:
    name, is_flat, reader = field.name, is_dataclass(kind), _reader(kind)
    is_optional = field.default is not MISSING or field.default_factory is not MISSING

    def part(values: Mapping[str, Any], where: str) -> Any:
        if name in values:
            return reader(values[name], f"{where}: {name}")
        if is_flat:
            return read(kind, values, where)
        if not is_optional:
            raise FieldError(f"{where} lacks {name}")
        return MISSING

    return part


@functools.cache
def _reader(kind: Any) -> Reader:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value, _where: value
    if kind in SCALARS:
        return functools.partial(_scalar, *SCALARS[kind])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value, where: kind(_one_of(tuple(one.value for one in kind), value, where))
    if own := getattr(kind, "from_json", None):  # a type that reads itself
        return typing.cast("Reader", own)
    if is_dataclass(kind):
        return functools.partial(read, typing.cast("Callable[..., Any]", kind))
    return COMPOUND[origin](*arguments) if origin in COMPOUND else _unwritten


def _unwritten(_value: Any, where: str) -> Any:
    """Read the field of a protocol, whose objects are never written: it can only be null."""
    raise FieldError(f"{where} must be null")


def _list_of(*kinds: Any) -> Reader:
    plain = kinds[0] if kinds[0] in (float, str) and ... in kinds else None
    return functools.partial(_list, [_reader(kind) for kind in kinds if kind is not ...], ... in kinds, plain)


COMPOUND: dict[Any, Callable[..., Reader]] = {
    Annotated: lambda kind, *_: _reader(kind),
    Literal: lambda *values: functools.partial(_one_of, values),
    typing.Union: lambda kind, _none: functools.partial(_or_null, _reader(kind)),
    types.UnionType: lambda kind, _none: functools.partial(_or_null, _reader(kind)),
    tuple: _list_of,
    collections.abc.Mapping: lambda _, kind: functools.partial(_object, _reader(kind)),
}


def _scalar(expected: str, kinds: tuple[type, ...], value: Any, where: str) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise FieldError(f"{where} must be {expected}, got {shown(value)}")
    if not isinstance(value, int) or abs(value) <= LARGEST:
        return value
    if float not in kinds or abs(value) > sys.float_info.max:
        digits = sys.float_info.max_10_exp if float in kinds else len(str(LARGEST))
        raise FieldError(f"{where} must be {expected} of at most {digits} digits, got {shown(value)}")
    return float(value)  # the same number, of which arithmetic stays as small as that of other floats


def _one_of(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if value not in choices or (isinstance(value, (bool, float)) and type(value) not in map(type, choices)):
        raise FieldError(f"{where} must be one of {', '.join(map(str, choices))}, got {shown(value)}")
    return value


def _or_null(reader: Reader, value: Any, where: str) -> Any:
    return None if value is None else reader(value, where)


def _list(readers: list[Reader], repeated: bool, plain: type | None, values: Any, where: str) -> tuple[Any, ...]:
    """Read a list; one of the `plain` type alone is accepted as a whole, since samples are most of a file."""
    if not isinstance(values, (list, tuple)) or not (repeated or len(values) == len(readers)):
        raise FieldError(f"{where} must be a list, got {shown(values)}")
    if plain and set(map(type, values)) == {plain}:
        return tuple(values)
    each = readers * len(values) if repeated else readers
    return tuple(reader(value, f"{where}[{i}]") for i, (reader, value) in enumerate(zip(each, values, strict=True)))


def _object(reader: Reader, values: Any, where: str) -> dict[str, Any]:
    if not isinstance(values, Mapping):
        raise FieldError(f"{where} must be an object, got {shown(values)}")
    return {name: reader(value, f"{where}: {name}") for name, value in values.items()}


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def written(value: Any) -> Any:
    """The value as JSON has it."""
    if value is None or type(value) in SCALARS:  # most are, and pages of thousands of rows are made of them
        return value
    if is_dataclass(value):
        return {field.name: written(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: written(one) for name, one in value.items()}
    return [written(one) for one in value] if isinstance(value, (list, tuple)) else value
