"""What a recorded process writes as it goes: a piece, which `merging.py` reads when the program has ended.

A piece has JSON lines: each distinct call once, then what has changed since the last time, and at last that the process
has ended. What cannot be written stays what has changed, and is tried again.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MOST_SAMPLES = 64  # of each distinct call
EVERY = 0.5  # seconds
LONGEST_PIECE = 64 << 20
ENDED = b'{"ended":true}\n'
DRAWN = random.Random()  # noqa: S311 - a sample is no secret, and the program's own state is not touched
LIBC = ctypes.PyDLL(None, use_errno=True)  # it keeps Python's lock: meanwhile no thread of Python closes or opens
LIBC.open.argtypes = (ctypes.c_char_p, ctypes.c_int, ctypes.c_int)
LIBC.pwrite.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long)
LIBC.pwrite.restype = ctypes.c_ssize_t
LIBC.ftruncate.argtypes = (ctypes.c_int, ctypes.c_long)


def append(path: str, text: bytes, end: int) -> None:
    """Add the text behind so many bytes, whole or not at all.

    No descriptor is kept: a program may close, exhaust or replace all that it finds, and gets no byte of the recording.
    """
    time.sleep(0)  # Python gives its lock away here rather than below
    place = LIBC.open(os.fsencode(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    is_whole = place >= 0 and LIBC.pwrite(place, text, len(text), end) == len(text)
    code = ctypes.get_errno()
    if place >= 0:
        if not is_whole:
            LIBC.ftruncate(place, end)
        LIBC.close(place)
    if not is_whole:
        raise OSError(code, os.strerror(code))


class Held:
    """What the small tensors of a call held; not ready while they are copied from a GPU."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        self.is_ready = True


class CallTally:
    """A distinct call of this process: how often it was made, and a uniform sample of what its tensors held.

    `due` is the call whose tensors are kept next. Behind the first 64 it is drawn, so that a call that is not kept
    costs a comparison: K.-H. Li, Reservoir-sampling algorithms of time complexity O(n(1 + log(N/n))), 1994.
    """

    def __init__(self, number: int, call: dict[str, Any], due: float) -> None:
        self.number, self.call, self.due = number, call, due
        self.count = self.replayed = 0
        self.samples: list[tuple[Held, ...]] = []
        self.changed: set[int] = set()  # samples that are not written
        self.written: tuple[int, int] | None = None
        self.threshold = 1.0

    def take(self, sample: tuple[Held, ...]) -> None:
        """Keep the sample for each call that is due."""
        while self.count >= self.due:
            if len(self.samples) < MOST_SAMPLES:
                self.samples.append(sample)
                place = len(self.samples) - 1
            else:
                place = DRAWN.randrange(MOST_SAMPLES)
                self.samples[place] = sample
            self.changed.add(place)
            self.due += 1 if len(self.samples) < MOST_SAMPLES else self._skipped()

    def _skipped(self) -> int:
        first, second = (1.0 - DRAWN.random() for _ in range(2))
        self.threshold *= math.exp(math.log(first) / MOST_SAMPLES)
        return int(math.log(second) / math.log1p(-self.threshold)) + 1

    def change(self, *, anew: bool) -> tuple[dict[str, Any], Callable[[], None]] | None:
        """A line with what has changed since the last one, or with all, and what to call once it is written."""
        counts, at = (self.count, self.replayed), range(len(self.samples)) if anew else [*self.changed]
        ready = [nth for nth in at if all(held.is_ready for held in self.samples[nth])]
        if not (anew or ready or counts != self.written):
            return None
        line: dict[str, Any] = {"id": self.number, "counts": counts}
        if anew or self.written is None:
            line["call"] = self.call
        line["samples"] = [(nth, {k: v for held in self.samples[nth] for k, v in held.values.items()}) for nth in ready]

        def done() -> None:
            self.written = counts
            self.changed.difference_update(ready)

        return line, done


class Writer:
    """Writes what has changed every half second, and when the process ends.

    `changes` lists it, all that there is where `anew`, with what to call once it is written.
    """

    def __init__(self, folder: str, changes: Callable[..., tuple[list[Any], list[Callable[[], None]]]]) -> None:
        self.folder, self.changes = folder, changes
        self.forked()

    def forked(self) -> None:
        """A new process has a piece of its own, and none of its parent's threads."""
        self.lock, self.pid, self.is_running = threading.RLock(), os.getpid(), False
        self.path, self.end, self.longest = f"{self.folder}/{self.pid}-{time.time_ns()}.jsonl", 0, LONGEST_PIECE

    def start(self) -> None:
        if not self.is_running:
            self.is_running = True
            with suppress(RuntimeError):  # the program is about to end
                threading.Thread(target=self.run, name="flashinfer-perf-record", daemon=True).start()

    def run(self) -> None:
        while True:
            time.sleep(EVERY)
            self.flush()

    def flush(self, *, ends: bool = False) -> None:
        """Write what is new; not in a process that others than Python forked, whose calls are not its own."""
        lock = self.lock
        if self.pid != os.getpid():
            return
        if lock.acquire(timeout=4 * EVERY):  # not by a signal's handler, in a call for whose end another thread waits
            with suppress(Exception):
                self.write()
                if ends and self.end:
                    append(self.path, ENDED, self.end)
            lock.release()

    def write(self) -> None:
        """Append to the piece; a long one is replaced by one with the last state of each call."""
        is_anew = self.end > self.longest
        lines, written = self.changes(anew=is_anew)
        text = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        if is_anew:
            append(f"{self.path}.new", text, 0)
            os.replace(f"{self.path}.new", self.path)  # noqa: PTH105
            self.end, self.longest = 0, len(text) + LONGEST_PIECE
        elif text:
            append(self.path, text, self.end)
        self.end += len(text)
        for done in written:
            done()
