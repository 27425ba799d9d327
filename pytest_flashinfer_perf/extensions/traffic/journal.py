"""A file that a recorded process writes through memory, so that there is no descriptor which the program could have.

A program may close descriptors that it does not know, replace or exhaust them, and change its root or its user. What is
stored in this memory reaches this file and no other one, and is kept if the process is killed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import time
from contextlib import suppress

LIBC = ctypes.PyDLL(None, use_errno=True)  # it keeps Python's lock: meanwhile no thread of Python closes or opens
LIBC.open.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
LIBC.posix_fallocate.argtypes = (ctypes.c_int, ctypes.c_long, ctypes.c_long)
LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
LIBC.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
NEW, THERE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
DONT_FORK, POPULATE_WRITE = 10, 23  # of madvise
NO_MEMORY = ctypes.c_void_p(-1).value
PAGE, LARGEST_STEP = mmap.PAGESIZE, 1 << 20  # bytes: it grows by a quarter, at least by a page


class MappedJournal:
    """A head of one size, which is replaced, and text behind it, which is only added to and ends at the first NUL.

    What finds no room, on the disk or by a limit of the process, raises OSError and has changed nothing.
    """

    def __init__(self, path: str, head: bytes) -> None:
        self.path, self.head, self.end = path, head, len(head)
        self.address = self.size = 0
        self.view = memoryview(b"")
        LIBC.close(_opened(path, NEW))
        os.chmod(path, 0o600)  # noqa: PTH101 - whatever the program's mask is
        self.identity = _identity(path)

    def add(self, text: bytes) -> None:
        """The first letter is stored last: text that a killed process did not finish is none."""
        end = self.end + len(text)
        self._provide(end + 1)
        self._store(self.end + 1, text[1:])
        self._store(self.end, text[:1])
        self.end = end

    def replace_head(self, head: bytes) -> None:
        self._provide(len(head))
        self._store(0, head)
        self.head = head

    def close(self) -> None:
        self.view = memoryview(b"")
        if self.size:
            LIBC.munmap(self.address, self.size)
            self.size = 0

    def _store(self, at: int, text: bytes) -> None:
        """In pages that are there: for one that a file system cannot give, memory would raise a signal."""
        first = at // PAGE * PAGE
        if LIBC.madvise(self.address + first, at + len(text) - first, POPULATE_WRITE):
            code = ctypes.get_errno()
            if code not in (errno.EINVAL, errno.ENOSYS):  # of kernels before 5.14
                raise _error(errno.ENOSPC if code == errno.EFAULT else code)
        self.view[at : at + len(text)] = text

    def _provide(self, least: int) -> None:
        """Have at least that many bytes; more where there is room for them."""
        if least > self.size:
            generous = max(least, self.size + min(self.size // 4, LARGEST_STEP))
            try:
                self._grow(-(-generous // PAGE) * PAGE)
            except OSError:
                self._grow(least)

    def _grow(self, size: int) -> None:
        if -1 < resource.getrlimit(resource.RLIMIT_FSIZE)[0] < size:
            raise _error(errno.EFBIG)  # the kernel would say it by a signal
        if _identity(self.path) != self.identity:
            raise _error(errno.ESTALE)
        try:
            address = _mapped(self.path, size)
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, self.size)  # it may have been given a part
            raise
        view = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
        if self.size and view[: len(self.head)] != self.head:
            LIBC.munmap(address, size)
            raise _error(errno.ESTALE)  # the descriptor has become another file's
        is_first = not self.size
        self.close()
        self.address, self.size, self.view = address, size, view
        if is_first:
            self._begin()

    def _begin(self) -> None:
        try:
            self._store(0, self.head)
        except OSError:
            self.close()
            raise


def _identity(path: str) -> tuple[int, int]:
    there = os.lstat(path)
    return there.st_dev, there.st_ino


def _mapped(path: str, size: int) -> int:
    """The memory of a file of that size. No child has it: one that Python does not know of would write there too."""
    time.sleep(0)  # Python gives its lock away here rather than below
    place = _opened(path, THERE)
    code = LIBC.posix_fallocate(place, 0, size)
    address = None if code else LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, place, 0)
    code = code or (ctypes.get_errno() if address == NO_MEMORY else 0)
    LIBC.close(place)
    if code:
        raise _error(code)
    LIBC.madvise(address, size, DONT_FORK)
    return int(address or 0)


def _opened(path: str, flags: int) -> int:
    place = LIBC.open(os.fsencode(path), flags, 0o600)
    if place < 0:
        raise _error(ctypes.get_errno())
    return int(place)


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
