"""An option, declared once: for all parsers that have it, with what its value may be and what becomes of it elsewhere.

Every session of pytest imports this module, whether it has a case or not: it imports no other of this package.
"""

from __future__ import annotations

import argparse
import importlib
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Any

DEFAULT_SEED = 42
LONGEST_LIMIT_S = 1e9  # the longest time that faulthandler accepts


class Child(Enum):
    """What becomes of a session's option in the processes that the session starts to measure or prepare cases.

    It selects tests or says how they are measured (SAME); it is told to each child anew (OWN); it selects a part of the
    tests, of which a child that prepares them all is told (PART); or the session alone does it, once (NONE).
    """

    SAME, OWN, PART, NONE = range(4)


@dataclass(frozen=True)
class Option:
    """An option: its name, the keywords of argparse and pytest, and what becomes of its value.

    `reads` if it names files that are read; `writes` names any file in the folder that it names, "" for that file.
    `pytest --help` shows the `daily` ones; `flashinfer-perf options` shows all.
    """

    name: str
    keywords: Mapping[str, Any]
    child: Child = Child.SAME
    reads: bool = False
    writes: str | None = None
    may_be_empty: bool = False
    daily: bool = False

    @property
    def default(self) -> Any:
        return self.keywords.get("default", False if self.keywords.get("action") == "store_true" else None)

    @property
    def fresh_default(self) -> Any:
        """A default of its own for each session: repeated options add their values to it."""
        return list(self.default) if isinstance(self.default, list) else self.default

    @property
    def dest(self) -> str:
        """The attribute of pytest's options that has its value."""
        return self.name.removeprefix("--").replace("-", "_")

    def add_by(self, add: Callable[..., object]) -> None:
        """`add` is argparse's `add_argument` or pytest's `addoption`."""
        add(self.name, **self.keywords)


def option(  # noqa: PLR0913 - one argument per property of an option
    name: str,
    *,
    child: Child = Child.SAME,
    reads: bool = False,
    writes: str | None = None,
    may_be_empty: bool = False,
    daily: bool = False,
    **keywords: Any,
) -> Option:
    return Option(name, keywords, child, reads, writes, may_be_empty, daily)


# A setting is a field of a dataclass that has the value of an option: declared there, and nowhere else.

OPTION, QUESTION, BOUND = "option", "question", "bound"  # in the metadata of a field

# The questions that options answer, which are their groups in `pytest --help`.
CASES, TIMING, CHECKING = "which cases run", "how cases are timed", "whether answers are right"
LONG_RUNS, FILES = "long runs, many GPUs and many machines", "files that are read and written"


def setting(question: str, name: str, **declared: Any) -> Any:
    """A field with the option that answers this question; what it may be is the option's `type`."""
    declaration = option(name, **declared)
    value = tuple(declaration.default) if isinstance(declaration.default, list) else declaration.default
    return field(
        default=value, metadata={OPTION: declaration, QUESTION: question, BOUND: declaration.keywords.get("type")}
    )


def bounded(bound: Bound, default: Any) -> Any:
    """A field without an option that is held to a bound."""
    return field(default=default, metadata={BOUND: bound})


def options_of(kind: Any) -> dict[str, list[Option]]:
    """The options of a dataclass's fields by the question that they answer."""
    by_question: dict[str, list[Option]] = {}
    for one in fields(kind):
        if OPTION in one.metadata:
            by_question.setdefault(one.metadata[QUESTION], []).append(one.metadata[OPTION])
    return by_question


def values_of(kind: Any, namespace: argparse.Namespace) -> dict[str, Any]:
    """The values of the options of a dataclass's fields, by the names of the fields."""
    declared = {one.name: one.metadata[OPTION] for one in fields(kind) if OPTION in one.metadata}
    values = {name: getattr(namespace, option.dest) for name, option in declared.items()}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def bounds_of(kind: Any) -> dict[str, Bound]:
    """The bounds of a dataclass's fields, by their names."""
    return {one.name: one.metadata[BOUND] for one in fields(kind)}


@dataclass(frozen=True)
class Bound:
    """The values that are allowed: a test, its words, and how to read a value from text, as argparse's `type` does."""

    words: str
    allows: Callable[[Any], bool]
    read: Callable[[str], Any]

    def __call__(self, text: str) -> Any:
        try:
            value = self.read(text)
        except (ValueError, OverflowError):
            value = None
        if value is None or not self.allows(value):
            raise argparse.ArgumentTypeError(self.refusal(text))
        return value

    def refusal(self, value: object) -> str:
        return f"must be {self.words}, got {value!r}"


def whole(least: int) -> Bound:
    return Bound(f"a whole number of at least {least}", lambda value: _is_whole(value) and value >= least, _digits)


def one_of(*names: str) -> Bound:
    return Bound(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names, str)


def choice(*names: str) -> dict[str, Any]:
    """The keywords of an option that is one of these; pytest's help lists them, and Python is held to them too."""
    return {"choices": names, "type": one_of(*names)}


REPEATABLE: dict[str, Any] = {"action": "append", "default": []}


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _digits(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def is_finite(value: Any) -> bool:
    """Whether it is a number, in Python's sense and not a truth value, that a float can hold, and at least 0."""
    is_number: bool = isinstance(value, Real) and not isinstance(value, bool)
    return is_number and 0 <= value <= sys.float_info.max


SECONDS = Bound("a finite number of seconds of at least 0", is_finite, float)
SEED = Bound("a whole number of at most 64 bits", lambda value: _is_whole(value) and -(2**63) <= value < 2**64, int)

LIMIT = Bound("a number of seconds, 0 for no limit", lambda value: 0 <= value <= LONGEST_LIMIT_S, float)
GIB = Bound("a number of GiB above 0", lambda value: 0 < value < math.inf, float)
NAME = Bound("letters, digits and . _ + -", lambda text: re.fullmatch(r"[\w.+-]+", text) is not None, str)
FOLDER = Bound("an existing folder", lambda text: Path(text).is_dir(), str)


# Options by which verdicts are made, of pytest and of the commands that compare files.

STRICT = option(
    "--perf-gate-strict", child=Child.NONE, action="store_true", help="Exit with 2 if a verdict is AMBIGUOUS."
)
ALLOW = option(
    "--perf-gate-allow",
    child=Child.NONE,
    may_be_empty=True,
    metavar="A,B",
    default="",
    help="Do not exit with 2 for these: missing, deselected or invalid cases, another GPU, driver or setting. "
    "An unknown name lists all. Default: none.",
)
JUDGED = (STRICT, ALLOW)


# A command of `flashinfer-perf`, which is imported when it is called.


GROUPS = ("measure", "look", "judge", "over time", "prepare")  # of commands, the daily ones first


@dataclass(frozen=True)
class Command:
    """`main` names its function, which takes the arguments and returns the exit code: "package.module:function".

    `group` is the one of `flashinfer-perf --help` that it stands in.
    """

    name: str
    help: str
    main: str
    group: str = "look"

    def load(self) -> Callable[[Sequence[str]], int]:
        module, _, function = self.main.partition(":")
        main: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
        return main

    def __call__(self, arguments: Sequence[str]) -> int:
        return self.load()(arguments)
