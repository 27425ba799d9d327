"""Python's garbage collection, which looks at every object of torch and FlashInfer each time: 0.2 s and more.

Their modules are never garbage, so it is off while they are imported, and leaves them out afterwards. It is off in
timed calls too, where it would be part of one of them. This module imports neither torch nor FlashInfer.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_gc() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collection, and leave all that is imported out of it for good."""
    with without_gc():
        yield
        gc.freeze()


def freeze_imports() -> None:
    """Exclude imported modules from garbage collection; those that are imported later are excluded by the next call."""
    _frozen(len(sys.modules))


@functools.cache
def _frozen(_modules: int) -> None:
    gc.collect()
    gc.freeze()
