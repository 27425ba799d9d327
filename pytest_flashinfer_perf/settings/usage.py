"""Errors in what the user wrote end pytest with their message alone, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pytest_flashinfer_perf.errors import FlashinferPerfError, missing_libraries_named
from pytest_flashinfer_perf.printing import safe_lines


@contextmanager
def errors_of_use(*others: type[Exception]) -> Iterator[None]:
    """Turn this package's errors, and others that are named, into pytest's UsageError."""
    kinds: tuple[type[Exception], ...] = (FlashinferPerfError, *others)
    try:
        with missing_libraries_named():
            yield
    except kinds as error:
        raise pytest.UsageError(safe_lines(str(error))) from error


def not_written(session: pytest.Session, option: str, error: OSError) -> str:
    """After the run: the message for a file that could not be written, and an exit code other than 0."""
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    return f"{option}: not written: {error}"
