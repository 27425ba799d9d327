"""Which lines of a traceback are neither a test's author's nor of what they call: this package's own.

A package within this one that stands for an author's, as backends do, says `__tracebackhide__ = False`.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
OF_AUTHORS = ("routines", "items.py")  # backends, and tests made of files, are shown
INSTRUMENT = ("flashinfer", "testing")


def is_between(file: str) -> bool:
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        inside = path.relative_to(PACKAGE)
        return not (any(name in OF_AUTHORS for name in inside.parts) or any(map(_is_shown, inside.parents)))
    return file == contextlib.__file__ or path.parts[-3:-1] == INSTRUMENT


def _is_shown(folder: Path) -> bool:
    package = sys.modules.get(".".join((PACKAGE.name, *folder.parts)))
    return getattr(package, "__tracebackhide__", None) is False


def raised_by_instrument(error: Exception) -> bool:
    """Whether flashinfer.testing itself raised the error, and not the call that it times."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return Path(last.filename).parts[-3:-1] == INSTRUMENT
