"""Lock a GPU, so that of all runs on a machine only one measures on it at a time."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HOLDS = "FLASHINFER_PERF_HOLDS"  # what a process has locked, for those that it starts: they measure under its lock


@contextmanager
def alone_on(name: str, waits: Callable[[Path], None]) -> Iterator[None]:
    """Hold an exclusive lock by name, which ends with its process; `waits` is called where another has the lock."""
    hold = f"{name}@{os.getpid()}"
    if any(held.startswith(f"{name}@") and held != hold for held in _held_locks()):
        yield
        return
    path = Path(tempfile.gettempdir()) / f"flashinfer-perf-{name}.lock"
    holder = _open(path)
    try:
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits(path)
            fcntl.flock(holder, fcntl.LOCK_EX)
        os.environ[HOLDS] = " ".join([*_held_locks(), hold])
        yield
    finally:
        os.environ[HOLDS] = " ".join(held for held in _held_locks() if held != hold)
        os.close(holder)


@contextmanager
def alone_on_all(names: Iterable[str], waits: Callable[[Path], None]) -> Iterator[None]:
    """Hold all of these locks; everybody takes them in one order, so that no two wait for each other."""
    with ExitStack() as stack:
        for name in sorted(set(names)):
            stack.enter_context(alone_on(name, waits))
        yield


def _held_locks() -> list[str]:
    return os.environ.get(HOLDS, "").split()


def _open(path: Path) -> int:
    """Open the file for reading: enough for a lock, and all that Linux allows in /tmp with another user's file."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        os.fchmod(descriptor, 0o644)  # whatever the umask: other users wait for it too
        return descriptor
