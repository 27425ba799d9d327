"""What a recorded process writes as it goes: a piece, which `merging.py` reads when the program has ended.

A piece is a journal of JSON lines: each distinct call once, then what has changed since the last time. Its head has the
number of calls that are in no line. What cannot be written stays what has changed, and is tried again.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from pytest_flashinfer_perf.extensions.traffic.journal import MappedJournal

MOST_SAMPLES = 64  # of each distinct call
EVERY = 0.5  # seconds
LONGEST_PIECE = 64 << 20
HEAD = 128  # bytes
PAGE = 4096  # with a count for each process
MOST_NUMBERS = 4 << 20  # of all samples that a process writes
DRAWN = random.Random()  # noqa: S311 - a sample is no secret, and the program's own state is not touched


class Held:
    """What the small tensors of a call held; not ready while they are copied from a GPU."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        self.is_ready = True


class PieceLine(NamedTuple):
    """A line for the piece, and what is told whether it was written, or by which error it has no form."""

    line: dict[str, Any]
    done: Callable[[bool], None]
    refused: Callable[[Exception], None] = lambda _: None


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
        self.is_refused = False  # JSON has no form for it
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

    @property
    def unwritten(self) -> int:
        return self.count - (self.written or (0, 0))[0]

    def line(self, ready: Iterable[int]) -> dict[str, Any]:
        """What has changed since it was written, with these samples."""
        line: dict[str, Any] = {"id": self.number}
        if self.written is None:
            line["call"] = self.call
        if self.written != (self.count, self.replayed):
            line["counts"] = (self.count, self.replayed)
        if ready:
            line["samples"] = [
                (at, {k: v for held in self.samples[at] for k, v in held.values.items()}) for at in ready
            ]
        return line

    def change(self, room: list[int], failed: Callable[[str, Exception, int], None]) -> PieceLine | None:
        """`room` has how many numbers of samples may still be written."""
        ready = [at for at in self.changed if all(held.is_ready for held in self.samples[at])] if room[0] > 0 else []
        counts, line = (self.count, self.replayed), self.line(ready)
        room[0] -= sum(len(numbers) for _, sample in line.get("samples", ()) for held in sample.values()
                       for numbers in held.values() if isinstance(numbers, list))  # fmt: skip
        self.changed.difference_update(ready)

        def done(is_written: bool) -> None:
            if is_written:
                self.written = counts
            else:
                self.changed.update(ready)

        def refused(error: Exception) -> None:
            self.is_refused = True
            failed(self.call["api"], error, 0)

        return PieceLine(line, done, refused) if len(line) > 1 else None


class Writer:
    """Writes what has changed every half second, and when the process ends.

    `changes` lists it, all that there is where `anew`, and `lost` says how many calls are in no line.
    """

    def __init__(self, folder: str, changes: Callable[..., list[PieceLine]], lost: Callable[[], int]) -> None:
        self.folder, self.changes, self.lost = folder, changes, lost
        self.of_children = mmap.mmap(-1, PAGE)
        self.forked()

    def forked(self) -> None:
        """Begin a piece of its own in a new process, which has none of its parent's threads.

        At once: later the process may have no descriptor left, another root, or another user. One that cannot have a
        piece shares `of_children` with its parent, in which it counts what is lost.
        """
        self.lock, self.pid, self.is_running = threading.RLock(), os.getpid(), False
        self.journal: MappedJournal | None = None
        self.longest, self.is_anew = LONGEST_PIECE, False
        with suppress(OSError):
            self.begin()
            self.of_children = mmap.mmap(-1, PAGE)

    def begin(self, ending: str = "jsonl") -> MappedJournal:
        made = MappedJournal(f"{self.folder}/{self.pid}-{time.time_ns()}.{ending}", head(0))
        self.journal = self.journal or made
        made.replace_head(made.head)
        return made

    def start(self) -> None:
        if not self.is_running:
            self.is_running = True
            with suppress(RuntimeError):  # the program is about to end
                threading.Thread(target=self.run, name="flashinfer-perf-record", daemon=True).start()

    def run(self) -> None:
        while True:
            time.sleep(EVERY)
            self.flush()

    def leave(self, *, ends: bool) -> None:
        """Before the process ends, or becomes another program: one that called nothing leaves no piece."""
        self.flush()
        if ends and self.journal and self.journal.end == HEAD and not self.lost():
            with suppress(OSError):
                os.unlink(self.journal.path)  # noqa: PTH108

    def flush(self) -> None:
        lock = self.lock
        if self.pid != os.getpid():  # forked by what is not Python: this piece is the parent's
            self.count_lost()
        elif lock.acquire(timeout=4 * EVERY):  # not by a signal's handler, in a call for whose end another thread waits
            with suppress(Exception):
                self.write()
            lock.release()

    def write(self) -> None:
        try:
            journal = self.journal or self.begin()
        except OSError:
            self.count_lost()
            raise
        if journal.end > self.longest:
            self.longest, self.is_anew = journal.end + LONGEST_PIECE, True
            with suppress(OSError):
                self.replace(journal)
        elif self.add(journal):
            self.is_anew = False

    def count_lost(self) -> None:
        place = os.getpid() % (PAGE // 8) * 8
        self.of_children[place : place + 8] = self.lost().to_bytes(8, "little")

    def replace(self, before: MappedJournal) -> None:
        """By a piece with the last state of each call, if there is room; at no time are there two."""
        made = self.begin("new")
        if not self.add(made):
            made.close()
            os.unlink(made.path)  # noqa: PTH108
            return
        os.replace(made.path, before.path)  # noqa: PTH105
        made.path, self.journal, self.is_anew = before.path, made, False
        before.close()

    def add(self, journal: MappedJournal) -> bool:
        """Whether there was room for all that has changed."""
        changes, why = self.changes(anew=self.is_anew), ""
        for change in changes:
            try:
                text = json.dumps(change.line, separators=(",", ":")).encode() + b"\n"
            except Exception as error:  # noqa: BLE001 - the other lines are written
                change.refused(error)
                continue
            try:
                why or journal.add(text)  # type: ignore[func-returns-value]
            except OSError as error:
                why = error.strerror or "it failed"
            change.done(not why)
        is_whole = not why
        of_children = sum(memoryview(self.of_children).cast("Q"))
        if changes or of_children:
            why = why or "a process that was forked could not write" * bool(of_children)
            journal.replace_head(head(self.lost() + of_children, why))
        return is_whole


def head(lost: int, why: str = "") -> bytes:
    """How many calls no line has, and why they could not be written."""
    return json.dumps({"lost": lost, "why": why[:64]}).ljust(HEAD - 1).encode() + b"\n"
