"""Errors in what the user wrote end pytest with their message alone, without a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_flashinfer_perf.errors import FlashinferPerfError


@contextmanager
def errors_of_use(*others: type[Exception]) -> Iterator[None]:
    """Turn this package's errors, and others that are named, into pytest's UsageError."""
    kinds: tuple[type[Exception], ...] = (FlashinferPerfError, *others)
    try:
        yield
    except kinds as error:
        raise pytest.UsageError(str(error)) from error


def verify_output(option: str, path: Path) -> None:
    """Raise, before anything is measured, if the file of an option cannot be written."""
    from pytest_flashinfer_perf.files import verify_writable  # only sessions that write a file need it

    try:
        verify_writable(path)
    except OSError as error:
        raise pytest.UsageError(f"{option}: {error}") from error


def not_written(session: pytest.Session, option: str, error: OSError) -> str:
    """After the run: the message for a file that could not be written, and an exit code other than 0."""
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
    return f"{option}: not written: {error}"


def positive(text: str) -> int:
    return _at_least(1, text)


def not_negative(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
    return int(text)
