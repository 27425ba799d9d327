"""What a user said or wrote and cannot be used: pytest ends with the sentence alone, without a traceback."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def errors_of_use(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        raise pytest.UsageError(str(error)) from error


def positive(text: str) -> int:
    return _at_least(1, text)


def not_negative(text: str) -> int:
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
    return int(text)
