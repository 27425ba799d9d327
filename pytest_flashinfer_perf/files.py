"""Write files atomically: they appear complete or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import IO


def write_whole(path: Path, text: str) -> None:
    """Write a file with the usual permissions. A link is followed, a device such as /dev/stdout is written to."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with _new_beside(path) as made:
        made.write(text)
    Path(made.name).chmod(0o666 & ~_umask())
    Path(made.name).replace(path.resolve())


def verify_writable(path: Path) -> None:
    """Raise the OSError that `write_whole` would raise; leaves nothing but the folders above the file."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.exists() or path.is_file():
        with _new_beside(path) as made:
            Path(made.name).unlink()


def _new_beside(path: Path) -> IO[str]:
    folder = path.resolve().parent
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return tempfile.NamedTemporaryFile("w", dir=folder, delete=False, newline="", encoding="utf-8")
    except OSError as error:  # its own message names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from error


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
