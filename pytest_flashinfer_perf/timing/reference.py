"""A fixed piece of host work that is timed beside calls, to compare cores of different speed.

Two virtual cores may be two threads of one real core: each takes up to twice as long while the other is busy, and what
runs there may not even be visible. So the reference is timed beside each round, and a round in units of it is the same
on any core. It needs Python alone, so that it is the same whatever version of FlashInfer or torch is installed.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

WARMUPS, CALLS = 3, 8
MOST_CORES = 16


def _call(q: int, k: int, v: int | None = None, *, out: int | None = None, scale: float = 1.0) -> None: ...


SIGNATURE = inspect.signature(_call)
DOCUMENT = {f"field_{n}": [n, str(n), {"shape": n}] for n in range(4)}
WORD = re.compile(r"(\w+)_(\d+)")


def work() -> object:
    """Bind arguments, write and read JSON, search a text: Python and C as a library's checks of its arguments are."""
    bound = SIGNATURE.bind(1, 2, out=3, scale=0.5)
    bound.apply_defaults()
    text = json.dumps(DOCUMENT)
    return json.loads(text), WORD.findall(text), bound.arguments


@contextmanager
def fastest_core() -> Iterator[None]:
    """Stay on the core that does the reference fastest now."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(_some(sorted(allowed)), key=_seconds_on)})
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _some(cores: list[int]) -> list[int]:
    return cores[:: -(-len(cores) // MOST_CORES)]


def _seconds_on(core: int) -> float:
    """The time of the reference on this core, with the time that it waits for it."""
    start = time.perf_counter()
    os.sched_setaffinity(0, {core})
    waited = time.perf_counter() - start
    for _ in range(WARMUPS):
        work()
    start = time.perf_counter()
    for _ in range(CALLS):
        work()
    return waited + time.perf_counter() - start
