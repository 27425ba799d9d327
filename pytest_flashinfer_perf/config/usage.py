"""What a user said or wrote and cannot be used: pytest ends with the sentence alone, without a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import verify_writable


@contextmanager
def errors_of_use(*others: type[Exception]) -> Iterator[None]:
    """Of this package's errors, and of others that are named."""
    kinds: tuple[type[Exception], ...] = (FlashinferPerfError, *others)
    try:
        yield
    except kinds as error:
        raise pytest.UsageError(str(error)) from error


def verify_output(option: str, path: Path) -> None:
    """Before anything is measured: what it is written to can be written."""
    try:
        verify_writable(path)
    except OSError as error:
        raise pytest.UsageError(f"{option}: {error}") from error


def not_written(session: pytest.Session, option: str, error: OSError) -> str:
    """When all is measured: a sentence, and no exit code that says all went well."""
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
