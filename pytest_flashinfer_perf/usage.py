"""What a user said or wrote and cannot be used: pytest ends with the sentence alone, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def errors_of_use(*kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kinds as error:
        raise pytest.UsageError(str(error)) from error
