"""The parts of a row that extensions add: fields of `extra_info` whose types the extensions declare.

Who loads extensions says here what they declare. Of a name that nobody has declared the values stay as they stand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.fields import FieldError

DECLARED: dict[str, Any] = {}  # the type of each part, with its description


def declare(parts_of_extensions: Iterable[Mapping[str, Any]]) -> None:
    """Let rows have the parts that each of some extensions names."""
    declared: dict[str, Any] = {}
    for parts in parts_of_extensions:
        if twice := declared.keys() & parts.keys():
            raise RuntimeError(f"two extensions add {', '.join(sorted(twice))} to a row")
        declared.update(parts)
    DECLARED.update(declared)


class Parts(dict[str, Any]):
    """The parts of one row by name."""

    @classmethod
    def from_json(cls, values: Any, where: str) -> Parts:
        if not isinstance(values, Mapping):
            raise FieldError(f"{where} must be an object, got {fields.shown(values)}")
        return cls({name: _value(name, one, where) for name, one in values.items() if one is not None})

    @classmethod
    def among(cls, values: Mapping[str, Any], where: str) -> Parts:
        """The parts of a row whose fields are all in one object."""
        return cls.from_json({name: values[name] for name in DECLARED if name in values}, where)


def _value(name: str, value: Any, where: str) -> Any:
    return fields.value(DECLARED[name], value, f"{where}: {name}") if name in DECLARED else value
