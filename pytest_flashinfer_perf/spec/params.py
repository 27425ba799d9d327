"""Params: one frozen dataclass per routine, a typed field per flag; flags, ids, JSON and strategies follow from it."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, ParamSpec

from pytest_flashinfer_perf.errors import FlashinferPerfError

Value = int | float | str | bool | None
Fault = tuple[str, str]
Facts = ParamSpec("Facts")
LONGEST_TOKEN = 40  # characters of a value in an id; a longer one is named by its digest


class ParamError(FlashinferPerfError, ValueError):
    """A value that no backend can run; the message names the parameter."""


@dataclass(frozen=True)
class Flag:
    """The declaration of a field, in addition to its type.

    In ids `letter` precedes the value. An id leaves out the `usual` value (none if it is "") and a value equal to that
    of the field `same_as`. `draw` lists values for small problems. A search tries sizes up to `most`, often around
    multiples of `tiles` and of `step`. `spellings` are the flag's names, the current upstream one first, if they differ
    from the field's name.
    """

    help: str
    _: dataclasses.KW_ONLY
    default: Any = dataclasses.field(default_factory=lambda: dataclasses.MISSING)  # given directly it means no default
    letter: str = ""
    usual: Value = None
    same_as: str = ""
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    draw: tuple[Value, ...] = ()
    most: int | None = None
    tiles: tuple[int, ...] = ()
    step: int = 1
    spellings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "draw", self.draw or self.choices)


def _field_by(declared: Callable[Facts, Flag]) -> Callable[Facts, Any]:
    @functools.wraps(declared)
    def flag(*args: Facts.args, **facts: Facts.kwargs) -> Any:
        declaration = declared(*args, **facts)
        return dataclasses.field(default=declaration.default, kw_only=True, metadata={"flag": declaration})

    return flag


flag = _field_by(Flag)  # declares a field of Params, with a Flag's arguments


def autotune() -> Any:
    """Declare `--autotune`, for routines with a backend that FlashInfer's autotuner tunes."""
    return flag(
        "tune FlashInfer's kernels for the case before it is timed", default=False, letter="autotune", draw=(False,)
    )


@dataclass(frozen=True)
class Field:
    """A field of Params with its type, default and declaration."""

    name: str
    type: type
    optional: bool
    flag: Flag

    @property
    def default(self) -> Any:
        return self.flag.default

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def spellings(self) -> tuple[str, ...]:
        return self.flag.spellings or (self.name,)

    @property
    def reader(self) -> Callable[[str], Any]:
        """The function that parses the flag's value; for choices it ignores case."""
        by_word = {choice.lower(): choice for choice in self.flag.choices}
        return (lambda word: by_word.get(word.lower(), word)) if by_word else self.type

    def faults(self, value: Any) -> Iterator[Fault]:
        if value is None and self.optional:
            return
        if not isinstance(value, self.type) or (self.type is int and isinstance(value, bool)):
            yield self.name, f"must be {self.type.__name__}, got {value!r}"
        elif self.flag.choices and value not in self.flag.choices:
            yield self.name, f"must be one of {', '.join(self.flag.choices)}, got {value!r}"
        elif isinstance(value, int) and self.flag.minimum is not None and value < self.flag.minimum:
            yield self.name, f"must be at least {self.flag.minimum}, got {value}"

    def token(self, value: Value) -> str:
        """The value's part of an id, such as b16, causal or qfp8; empty for a usual value."""
        if value in (None, False) or value == (self.default if self.flag.usual is None else self.flag.usual):
            return ""
        text = SHORT.get(str(value), str(value))
        if len(text) > LONGEST_TOKEN:
            text = hashlib.sha256(text.encode()).hexdigest()[:8]
        return self.flag.letter if value is True else f"{self.flag.letter}{text}"


SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8_e4m3": "fp8", "fp8_e5m2": "e5m2"}


def fields_of(params: type[Params]) -> tuple[Field, ...]:
    if params not in _FIELDS:
        hints, result = typing.get_type_hints(params), []
        for declared in dataclasses.fields(params):
            hint = hints[declared.name]
            alternatives = [a for a in typing.get_args(hint) if a is not type(None)]
            base = alternatives[0] if alternatives else hint
            result.append(Field(declared.name, base, bool(alternatives), declared.metadata["flag"]))
        _FIELDS[params] = tuple(result)
    return _FIELDS[params]


_FIELDS: dict[type[Params], tuple[Field, ...]] = {}


@dataclass(frozen=True)
class Params:
    """The shape and types of a problem, validated when they are made.

    `ignores` are flags that upstream accepts for this routine and ignores; `refuses` those that it has and that have
    no meaning here, with what to do.
    """

    ignores: ClassVar[tuple[str, ...]] = ()
    refuses: ClassVar[Mapping[str, str]] = {}

    def __post_init__(self) -> None:
        faults = [fault for field in fields_of(type(self)) for fault in field.faults(getattr(self, field.name))]
        faults = faults or list(self.faults())
        if faults:
            raise ParamError("; ".join(f"{name}: {sentence}" for name, sentence in faults))

    def faults(self) -> Iterator[Fault]:
        """Faults in the combination of parameters; called if every field is valid by itself."""
        yield from ()

    @classmethod
    def fitted(cls, drawn: dict[str, Any]) -> dict[str, Any]:
        """Adjust values that were drawn field by field to fit together, so that few draws are rejected."""
        return drawn

    def as_dict(self) -> dict[str, Value]:
        return dataclasses.asdict(self)

    def as_json(self) -> dict[str, Value]:
        """The fields as JSON strings, numbers and booleans, with defaults that other fields give; None is left out."""
        values = self.as_dict()
        implied = {f.name: self.implied(f) for f in fields_of(type(self)) if f.flag.same_as and values[f.name] is None}
        return {name: value for name, value in {**values, **implied}.items() if value is not None}

    def implied(self, field: Field) -> Value:
        """The value of a field that is not given and by default the same as another one."""
        value: Value = getattr(self, field.flag.same_as)
        return value

    def slug(self, covered: Mapping[str, Value] | None = None) -> str:
        """The id of this problem, without the fields that a model's name already covers."""
        covered_fields = covered or {}
        tokens = []
        for field in fields_of(type(self)):
            value, same_as = getattr(self, field.name), field.flag.same_as
            is_implied = same_as and value == getattr(self, same_as)
            if not is_implied and (field.name not in covered_fields or field.flag.usual == ""):
                tokens.append(field.token(value))
        return "-".join(filter(None, tokens))
