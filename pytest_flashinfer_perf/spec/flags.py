"""Testlist syntax: a case as a line of `flashinfer_benchmark.py` flags, written and read from the same declaration."""

from __future__ import annotations

import argparse
import difflib
import shlex
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pytest_flashinfer_perf.spec.params import ParamError, Params, fields_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

P = TypeVar("P", bound=Params)
LONGEST = 100_000  # characters of a line: shlex takes time by the square of their number


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ParamError(message)


def parser(*, shortened: bool = False) -> argparse.ArgumentParser:
    """A parser that raises ParamError instead of ending the process."""
    return _Parser(add_help=False, allow_abbrev=shortened)


def expanded(words: Iterable[str], known: Collection[str]) -> list[str]:
    """Complete flags that are abbreviated unambiguously, as upstream's argparse does."""
    whole = []
    for word in words:
        name, equals, value = word.partition("=")
        is_short = name.startswith("--") and name not in known
        meant = {flag for flag in known if is_short and flag.startswith(name)}
        whole.append("".join([*meant, equals, value]) if len(meant) == 1 else word)
    return whole


def read(params: type[P], words: Sequence[str], accepted: Collection[str] = (), hints: Collection[str] = ()) -> P:
    """Parse the flags of a routine. Those in `accepted` are ignored; `hints` are known to other parsers."""
    values = read_some(params, words, accepted, hints, "store_true")
    missing = [field.spellings for field in fields_of(params) if field.required and field.name not in values]
    if missing:
        raise ParamError(required("/".join(f"--{name}" for name in names) for names in missing))
    return params(**values)


def read_some(
    params: type[P],
    words: Sequence[str],
    accepted: Collection[str],
    hints: Collection[str] = (),
    switch: Any = argparse.BooleanOptionalAction,
) -> dict[str, Any]:
    """The values of the fields that are given; `--no-return_lse` gives False for a switch, unless it is stored true."""
    parsing = parser()
    for field in fields_of(params):
        names = [f"--{name}" for name in field.spellings]
        how = {"action": switch} if field.type is bool else {"type": field.reader}
        parsing.add_argument(*names, dest=field.name, default=argparse.SUPPRESS, **how)
    own = {spelling for field in fields_of(params) for spelling in field.spellings}
    ignored = [f"--{name}" for name in sorted({*params.ignores, *accepted} - own)]
    for name in ignored:
        parsing.add_argument(name, nargs="?", default=argparse.SUPPRESS)
    args, others = parsing.parse_known_args(list(words))
    if others and others[0] in params.refuses:
        raise ParamError(f"{others[0]} {params.refuses[others[0]]}")
    if others:
        raise ParamError(unknown(others[0], [*(f"--{name}" for name in own), *ignored, *hints]))
    return {field.name: getattr(args, field.name) for field in fields_of(params) if hasattr(args, field.name)}


def required(flags: Iterable[str]) -> str:
    return f"the following arguments are required: {', '.join(flags)}"


def unknown(word: str, flags: Collection[str]) -> str:
    name = word.partition("=")[0]
    if name in flags:
        return f"{name} belongs to a command, and not to the line of a case"
    close = difflib.get_close_matches(name, sorted(flags), n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"unknown flag {name}{hint}" if name.startswith("-") else f"{name!r} belongs to no flag"


def write(params: Params) -> list[str]:
    """The flags for these Params, which `read` parses; values that equal the default are left out."""
    words: list[str] = []
    for field in fields_of(type(params)):
        value, name = getattr(params, field.name), f"--{field.spellings[0]}"
        if value is True and field.default is not True:
            words.append(name)
        elif value not in (None, False) and (field.required or value != field.default):
            words += [name, str(value)]
    return words


def join(words: Sequence[str]) -> str:
    return shlex.join(words)


def split(line: str) -> list[str]:
    """The words of a line, as a shell has them."""
    if len(line) > LONGEST:
        raise ParamError(f"the line has {len(line):,} characters, more than {LONGEST:,} are no flags of a case")
    try:
        return shlex.split(line)
    except ValueError as error:
        raise ParamError(f"{error}: {line}") from error
