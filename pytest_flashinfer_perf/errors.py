"""The base of all errors of this package, and the messages for an unknown name and for what is not installed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class FlashinferPerfError(Exception):
    """The message says what is wrong and what to do about it.

    A command prints it alone and ends with `exit_code`. Where pytest cannot start, it ends with its usage error.
    """

    exit_code = 2


def in_one_line(error: BaseException) -> str:
    """The type and the first line of what any program's error says."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"


EXTRAS = {"torch": "bench"}  # comparing and reporting runs does not need it


class NotInstalledError(FlashinferPerfError):
    """A library is not installed that only an extra of this package brings."""

    def __init__(self, library: str, extra: str) -> None:
        cure = f"pip install {library}, or this package with its extra {extra}"
        super().__init__(f"this needs {library}, which is not installed: {cure}")


def is_installed(library: str) -> bool:
    """Found without an import, which may take seconds."""
    return find_spec(library) is not None


def require(library: str, *, extra: str = "") -> None:
    if not is_installed(library):
        raise NotInstalledError(library, extra or EXTRAS[library])


@contextmanager
def missing_libraries_named() -> Iterator[None]:
    """Raise NotInstalledError where an import fails because such a library is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        raise NotInstalledError(error.name, EXTRAS[error.name]) from error


LONGEST = 80  # of what is shown of it


def unknown(name: str, names: Iterable[str]) -> str:
    """Suggest the closest known name, and list all of them in the given order."""
    all_names = list(names)
    name = name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
    close = difflib.get_close_matches(name, all_names, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"unknown name {name!r}, {hint}known are {', '.join(all_names)}"
