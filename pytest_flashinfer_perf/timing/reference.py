"""A fixed piece of host work that is timed beside calls, to compare cores of different speed.

Two virtual cores may be two threads of one real core: each takes up to twice as long while the other is busy, and what
runs there may not even be visible. So the reference is timed beside each round, on a few cores in turn: the fastest
call in units of the fastest reference is nearly the same in each process. The reference needs Python alone, so that it
is the same whatever version of FlashInfer or torch is installed.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST_CORES = 4


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
def moving_over_cores() -> Iterator[Callable[[float], None]]:
    """Hand out a function that moves this thread to one of a few cores, by the share of the work that is done."""
    allowed = os.sched_getaffinity(0)
    cores = _some(sorted(allowed))
    try:
        yield lambda done: os.sched_setaffinity(0, {cores[int(done * len(cores))]})
    finally:
        os.sched_setaffinity(0, allowed)


def _some(cores: list[int]) -> list[int]:
    return cores[:: -(-len(cores) // MOST_CORES)]
