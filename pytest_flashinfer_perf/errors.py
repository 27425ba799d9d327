"""The base of all errors of this package."""

from __future__ import annotations


class FlashinferPerfError(Exception):
    """The message says what is wrong and what to do about it.

    A command prints it alone and ends with `exit_code`. Where pytest cannot start, it ends with its usage error.
    """

    exit_code = 2
