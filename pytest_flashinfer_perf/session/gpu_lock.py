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
    """An exclusive lock by name; `waits` is called where another has it. The kernel frees it when its holder dies."""
    hold = f"{name}@{os.getpid()}"
    if any(held.startswith(f"{name}@") and held != hold for held in _held()):
        yield
        return
    path = Path(tempfile.gettempdir()) / f"flashinfer-perf-{name}.lock"
    holder = _opened(path)
    try:
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waits(path)
            fcntl.flock(holder, fcntl.LOCK_EX)
        os.environ[HOLDS] = " ".join([*_held(), hold])
        yield
    finally:
        os.environ[HOLDS] = " ".join(held for held in _held() if held != hold)
        os.close(holder)


@contextmanager
def alone_on_all(names: Iterable[str], waits: Callable[[Path], None]) -> Iterator[None]:
    """All of these locks, taken in one order by everybody: nobody waits for one that waits for him."""
    with ExitStack() as stack:
        for name in sorted(set(names)):
            stack.enter_context(alone_on(name, waits))
        yield


def _held() -> list[str]:
    return os.environ.get(HOLDS, "").split()


def _opened(path: Path) -> int:
    """Open the file for reading: enough for a lock, and all that Linux allows in /tmp with another user's file."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        made = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        os.fchmod(made, 0o644)  # whatever the umask: other users wait for it too
        return made
