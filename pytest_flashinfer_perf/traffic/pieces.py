"""What a recorded process writes as it goes: a piece, which `merging.py` reads when the program has ended.

A piece is a file of JSON lines that is only added to: each distinct call once, then what has changed since the last
time. So a process that is killed loses what it did since then, and at most leaves a torn last line behind.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_SAMPLES = 64  # of each distinct call
EVERY = 0.5  # seconds
LONGEST_PIECE = 64 << 20
MOST_NUMBERS = 4 << 20  # of all samples that a process writes
DRAWN = random.Random()  # noqa: S311 - a sample is no secret, and the program's own state is not touched


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


class Writer:
    """Writes the lines that it is given, every half second and when the process ends."""

    def __init__(self, folder: str, lines: Callable[..., list[dict[str, Any]]]) -> None:
        self.folder, self.lines = folder, lines
        self.forked()
        self.exit = os._exit
        os._exit = self.exited  # type: ignore[assignment]  # it ends forked workers, without what atexit would do
        atexit.register(self.flush)

    def forked(self) -> None:
        """Begin a piece of its own in a new process, which has none of its parent's threads."""
        self.lock, self.piece, self.path, self.size = threading.RLock(), -1, Path(), 0
        self.is_running = False

    def start(self) -> None:
        if not self.is_running:
            self.is_running = True
            with suppress(RuntimeError):  # the program is about to end
                threading.Thread(target=self.run, name="flashinfer-perf-record", daemon=True).start()

    def run(self) -> None:
        while True:
            time.sleep(EVERY)
            self.flush()

    def exited(self, status: int) -> None:
        self.flush()
        self.exit(status)

    def flush(self) -> None:
        lock = self.lock
        if not lock.acquire(timeout=4 * EVERY):  # by a signal's handler, in a call for whose end the other thread waits
            return
        with suppress(Exception):
            self.write()
        lock.release()

    def write(self) -> None:
        anew = self.size > LONGEST_PIECE
        text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in self.lines(anew=anew))
        if not text:
            return
        before, final = self.piece, self.path
        if before < 0 or anew:
            self.path = Path(self.folder, f"{os.getpid()}-{time.time_ns()}.{'new' if anew else 'jsonl'}")
            self.piece = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self.size = 0
        data = text.encode()
        self.size += len(data)
        while data:
            data = data[os.write(self.piece, data) :]
        if anew:  # at no time are there two
            self.path = self.path.replace(final)
            os.close(before)


def changes(tallies: Iterable[CallTally], room: list[int], *, anew: bool) -> Iterator[dict[str, Any]]:
    """A line for each tally that has changed since; `room` has how many numbers of samples may still be written."""
    for tally in tallies:
        if anew:
            tally.written, tally.changed = None, set(range(len(tally.samples)))
        line: dict[str, Any] = {"id": tally.number}
        if tally.written is None:
            line["call"] = tally.call
        if tally.written != (tally.count, tally.replayed):
            tally.written = line["counts"] = (tally.count, tally.replayed)
        ready = [at for at in tally.changed if all(held.is_ready for held in tally.samples[at])]
        if ready and room[0] > 0:
            samples = [(at, {k: v for held in tally.samples[at] for k, v in held.values.items()}) for at in ready]
            room[0] -= sum(len(one) for _, sample in samples for held in sample.values() for one in held.values()
                           if isinstance(one, list))  # fmt: skip
            line["samples"] = samples
            tally.changed.difference_update(ready)
        if len(line) > 1:
            yield line
