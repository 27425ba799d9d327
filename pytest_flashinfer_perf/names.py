"""What to say of a name that nobody has."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown(name: str, known: Iterable[str]) -> str:
    """Says what is known in the order in which it is given."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown name {name!r}, {hint}known are {', '.join(names)}"
