"""Translate a line of `flashinfer_benchmark.py` whose routine is an API with a template to the API's flags."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.extensions.apis import special_cases
from pytest_flashinfer_perf.extensions.apis.shapes import FLOATS
from pytest_flashinfer_perf.extensions.apis.special_cases import LineSpecial
from pytest_flashinfer_perf.extensions.apis.templates import Api, installed
from pytest_flashinfer_perf.spec.case import MissingCaseError
from pytest_flashinfer_perf.spec.params import ParamError


def _special(routine: str) -> LineSpecial:
    return special_cases.LINES.get(routine, LineSpecial())


@dataclass(frozen=True)
class _Line:
    """The flags of a line, some of which a part of the API has taken."""

    routine: str
    api: Api
    flags: Mapping[str, str]

    @classmethod
    def read(cls, routine: str, api: Api, flags: Mapping[str, str]) -> _Line:
        """Read a line, with upstream's defaults: `enable_pdl` is off unless the line sets it."""
        defaults = {"enable_pdl": "False", **(_special(routine).defaults or special_cases.DEFAULTS.get(api.family, {}))}
        axes = {axis.name for axis in api.axes}
        names = {*api.arguments, *axes, "input_dtype"}
        names |= {name for axis in axes for name in special_cases.AXES.get(axis, "").split("*")}
        flags_and_defaults = {**{name: defaults[name] for name in defaults if name in names}, **flags}
        return cls(routine, api, flags_and_defaults)

    def words(self) -> list[str]:
        axes = dict(self._axes())
        sizes = {axis: _size(names, self.flags) for axis, names in axes.items()}
        taken = {name for axis in axes for name in (axis, *_names(axis))}
        others = {name: value for name, value in self.flags.items() if name not in taken}
        dtype = others.pop("input_dtype", "")
        if dtype and dtype not in FLOATS:
            raise MissingCaseError(f"{self.routine}: {self.api.path}: its template makes no inputs of {dtype}")
        arguments = ",".join(word for name, value in others.items() for word in self._argument(name, value))
        flags = {
            **sizes,
            **({"dtype": dtype} if dtype else {}),
            **({"arguments": arguments} if arguments else {}),
        }
        return [word for name, value in flags.items() for word in (f"--{name}", str(value)) if word]

    def _axes(self) -> Iterator[tuple[str, list[str]]]:
        for axis in self.api.axes:
            options = ([axis.name], _names(axis.name))
            names = next((each for each in options if each and set(each) <= set(self.flags)), None)
            if names:
                yield axis.name, names

    def _argument(self, name: str, value: str) -> Iterator[str]:
        options = special_cases.ARGUMENTS.get(name, {name: value or "True"}).items()
        argument_text = next(
            (f"{argument}={fixed}" for argument, fixed in options if argument in self.api.arguments), None
        )
        if argument_text:
            yield argument_text
        elif value not in (*special_cases.ANYWAY.get(name, ()), _special(self.routine).anyway.get(name)):
            raise MissingCaseError(f"{self.routine}: {self.api.path}: its template has no --{name}")


def _names(axis: str) -> list[str]:
    """The flags whose product is as long as the axis; none if it has no others than its own."""
    product = special_cases.AXES.get(axis)
    return product.split("*") if product else []


def _size(names: list[str], flags: Mapping[str, str]) -> int:
    return math.prod(_number(name, flags) for name in names)


def _number(name: str, flags: Mapping[str, str]) -> int:
    try:
        return int(flags[name])
    except ValueError:
        raise ParamError(f"{name}: must be a number, got {flags[name]!r}") from None


def translated(routine: str, api: Api, rest: Sequence[str]) -> list[str]:
    """The flags of upstream's line, as those of the API."""
    return _Line.read(routine, api, _flags(rest)).words()


def api_of(routine: str, rest: Sequence[str] = ()) -> Api:
    """The API that upstream's routine calls."""
    registry = installed()
    own = _special(routine)
    by_flag = (own.by_flag.get(f"{name}={value}") for name, value in _pairs(rest))
    wanted = next(filter(None, by_flag), own.api or routine)
    apis = [api for api in registry.apis if api.path.rpartition(".")[2] == wanted]
    if not apis:
        where = f"FlashInfer {registry.version} has" if registry.version else "without FlashInfer there is"
        raise MissingCaseError(f"{routine}: {where} no such API with a trace template")
    best = next((api for api in apis if not api.missing), apis[0])
    if best.missing:
        raise MissingCaseError(f"{routine}: {best.path}: {best.missing}")
    return best


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each flag with the word behind it."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = word.removeprefix("--").partition("=")
        yield name, value or following


def _flags(rest: Sequence[str]) -> dict[str, str]:
    """A flag's value is empty where it has none."""
    values: dict[str, str] = {}
    name = ""
    for word in rest:
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            values[name] = value
        elif name and not values[name]:
            values[name] = word
        else:
            raise ParamError(f"{word!r} belongs to no flag")
    return values
