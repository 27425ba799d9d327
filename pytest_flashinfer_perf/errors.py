"""The base of all errors of this package."""

from __future__ import annotations


class FlashinferPerfError(Exception):
    """The message says what is wrong and what to do about it, and is shown without a traceback.

    A command ends with `exit_code`; pytest ends with its own code for a usage error, or fails the test.
    """

    exit_code = 2
