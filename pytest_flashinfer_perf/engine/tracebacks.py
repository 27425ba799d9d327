"""Shorten tracebacks to the lines of a test's author and of what they call, without this package's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

PACKAGE = Path(__file__).parents[1]
OF_AUTHORS = ("routines", "apis", "vllm_decode.py", "items.py")  # backends, and tests made of files, are shown
INSTRUMENT = ("flashinfer", "testing")


def hide_ours(failure: pytest.ExceptionInfo[BaseException]) -> None:
    """Remove this package's lines from the error's traceback and from those of its causes."""
    kept = _without_ours(failure.tb)
    if kept is not None:
        failure.traceback = type(failure.traceback)(kept)
    for cause in _causes(failure.value):
        cause.__traceback__ = _without_ours(cause.__traceback__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    cause = error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__


def _without_ours(lines: TracebackType | None) -> TracebackType | None:
    kept: TracebackType | None = None
    for line in reversed(list(_each(lines))):
        if not is_between(line.tb_frame.f_code.co_filename):
            kept = TracebackType(kept, line.tb_frame, line.tb_lasti, line.tb_lineno)
    return kept


def _each(line: TracebackType | None) -> Iterator[TracebackType]:
    while line is not None:
        yield line
        line = line.tb_next


def is_between(file: str) -> bool:
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return not any(name in OF_AUTHORS for name in path.relative_to(PACKAGE).parts)
    return file == contextlib.__file__ or path.parts[-3:-1] == INSTRUMENT


def raised_by_instrument(error: Exception) -> bool:
    """Whether flashinfer.testing itself raised the error, and not the call that it times."""
    *_, last = _each(error.__traceback__)
    return Path(last.tb_frame.f_code.co_filename).parts[-3:-1] == INSTRUMENT
