"""The base of all errors of this package, and the message for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FlashinferPerfError(Exception):
    """The message says what is wrong and what to do about it.

    A command prints it alone and ends with `exit_code`. Where pytest cannot start, it ends with its usage error.
    """

    exit_code = 2


def in_one_line(error: BaseException) -> str:
    """The type and the first line of what any program's error says."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


LONGEST = 80  # of what is shown of it


def unknown(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known name, and list all of them in the given order."""
    names = list(known)
    name = name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown name {name!r}, {hint}known are {', '.join(names)}"
