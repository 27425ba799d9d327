"""Shorten tracebacks to the lines of a test's author and of what they call, without this package's own.

A package within this one that stands for an author's, as backends do, says `__tracebackhide__ = False`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

PACKAGE = Path(__file__).parents[1]
OF_AUTHORS = ("routines", "items.py")  # backends, and tests made of files, are shown
INSTRUMENT = ("flashinfer", "testing")


def without_ours(error: BaseException, lines: TracebackType | None) -> TracebackType | None:
    """These lines of an error without this package's own, which its causes lose as well."""
    for cause in _causes(error):
        cause.__traceback__ = _without_ours(cause.__traceback__)
    return _without_ours(lines)


def _causes(error: BaseException) -> Iterator[BaseException]:
    visited = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _without_ours(lines: TracebackType | None) -> TracebackType | None:
    """Rebuild a traceback from the lines that are not this package's own."""
    rest: TracebackType | None = None
    for line in reversed(list(_each(lines))):
        if not is_between(line.tb_frame.f_code.co_filename):
            rest = TracebackType(rest, line.tb_frame, line.tb_lasti, line.tb_lineno)
    return rest


def _each(line: TracebackType | None) -> Iterator[TracebackType]:
    while line is not None:
        yield line
        line = line.tb_next


def is_between(file: str) -> bool:
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        inside = path.relative_to(PACKAGE)
        return not (any(name in OF_AUTHORS for name in inside.parts) or any(map(_is_shown, inside.parents)))
    return file == contextlib.__file__ or path.parts[-3:-1] == INSTRUMENT


def _is_shown(folder: Path) -> bool:
    package = sys.modules.get(".".join((PACKAGE.name, *folder.parts)))
    return getattr(package, "__tracebackhide__", None) is False


def raised_by_instrument(error: Exception) -> bool:
    """Whether flashinfer.testing itself raised the error, and not the call that it times."""
    *_, last = _each(error.__traceback__)
    return Path(last.tb_frame.f_code.co_filename).parts[-3:-1] == INSTRUMENT
