"""Read and write files: what is read may be anybody's, and what is written appears complete or not at all."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pytest_flashinfer_perf.errors import FlashinferPerfError

NAMES = (str, int, type(None))  # of members, that JSON turns into text by itself
STREAMS = {
    "/dev/stdout": 1,
    "/dev/stderr": 2,
}  # where a shell has redirected them, they are files that others write too


class FileError(FlashinferPerfError):
    """A file that cannot be read, or must not be written; the message names it."""


def read_text(path: Path) -> str:
    """The text of a file, without the byte order mark that some editors write. What a device says may have no end."""
    with path.open(encoding="utf-8-sig") as file:
        if path.is_char_device() and file.read(1):
            raise OSError(errno.EINVAL, "is a device and no file", str(path))
        return file.read()


def read_json(path: Path) -> Any:
    """The document in a file, None for an empty file."""
    try:
        return json.loads(read_text(path) or "null")
    except FileNotFoundError as error:
        raise FileError(f"{path} does not exist") from error
    except RecursionError as error:
        raise FileError(f"{path}: cannot be read as JSON: it is nested too deeply") from error
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read as JSON: {error}") from error


def write_json(path: Path, document: Any, *, indent: int | None = 1) -> None:
    write_whole(path, as_json(document, indent=indent) + "\n")


def as_json(document: Any, *, indent: int | None = None) -> str:
    """The document as JSON, with null for NaN and infinities, which JSON does not have."""
    try:
        return json.dumps(document, indent=indent, allow_nan=False, default=_unknown)
    except (ValueError, TypeError):  # a number that JSON does not have, or a name that is no text
        return json.dumps(_finite(document), indent=indent, allow_nan=False, default=_unknown)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name if isinstance(name, NAMES) else str(name): _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value


def _unknown(value: object) -> str:
    """What JSON has no form for, as pytest-benchmark writes it."""
    return f"UNSERIALIZABLE[{value!r}]"


def write_whole(path: Path, text: str) -> None:
    """Write a file with the usual permissions. A link is followed, a device such as /dev/stdout is written to.

    If that fails, what was there before is there still, and nothing else.
    """
    if _is_device(path):
        place = os.dup(STREAMS[str(path)]) if str(path) in STREAMS else path
        with _naming(path), open(place, "w", encoding="utf-8", errors="backslashreplace") as there:  # noqa: PTH123 - or a descriptor
            there.write(text)
        return
    with _new_beside(path) as new_file, _naming(path):
        new_file.write(text)
        new_file.close()
        Path(new_file.name).chmod(0o666 & ~_umask())
        Path(new_file.name).replace(_target(path))


def append_whole(path: Path, text: str) -> None:
    """Add the text to the end of a file, as other processes may, or nothing of it."""
    with _naming(path), path.open("a", newline="", encoding="utf-8", errors="backslashreplace") as there:
        if not path.is_file():
            there.write(text)
            return
        fcntl.flock(there, fcntl.LOCK_EX)
        size = os.fstat(there.fileno()).st_size
        added = text.encode("utf-8", "backslashreplace")
        try:
            while added:  # behind a write that is cut short, the next one says why
                added = added[os.write(there.fileno(), added) :]
        except OSError:
            os.truncate(there.fileno(), size)
            raise


def verify_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path] = ()) -> None:
    """Raise unless each file of an option can be written, and is neither read nor written by another option.

    Before anything is read or measured: it leaves nothing but the folders above the files.
    """
    named = {option: path for option, path in outputs.items() if path is not None}
    read = [path for path in inputs if path.exists()]
    for place, (option, path) in enumerate(named.items()):
        if any(_is_same(path, other) for other in read):
            raise FileError(f"{option}: {path} is read by the same command: write to another file")
        for earlier, other in list(named.items())[:place]:
            if _is_same(path, other):
                raise FileError(f"{option}: {path} is written by {earlier} too: write to another file")
        try:
            verify_writable(path)
        except OSError as error:
            raise FileError(f"{option}: {error}") from error


def verify_writable(path: Path) -> None:
    """Raise the OSError that `write_whole` would raise."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not _is_device(path):
        with _new_beside(path):
            pass


def _is_same(one: Path, other: Path) -> bool:
    """Whether both are one file, by whatever link; a device is nobody's."""
    if _is_device(one):
        return False
    with suppress(OSError):
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


def _is_device(path: Path) -> bool:
    return str(path) in STREAMS or (path.exists() and not path.is_file())


@contextmanager
def _new_beside(path: Path) -> Iterator[IO[str]]:
    """A temporary file in the folder of another, which is gone in the end unless it was renamed."""
    with _naming(path):
        folder = _target(path).parent
        folder.mkdir(parents=True, exist_ok=True)
        new_file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed below
            "w", dir=folder, delete=False, newline="", encoding="utf-8", errors="backslashreplace"
        )
    try:
        yield new_file
    finally:
        with suppress(OSError):  # to close it writes what the disk had no room for
            new_file.close()
        Path(new_file.name).unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file that was asked for in errors, which name the temporary file or none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _target(path: Path) -> Path:
    """The file that links lead to."""
    try:
        return path.resolve()
    except RuntimeError as error:  # of links in a circle, before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path)) from error


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
