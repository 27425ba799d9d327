"""Show the progress of compilation: a line for each finished module, and on a terminal a bar of files below."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from pytest_flashinfer_perf.runs.formatting import counted


class Progress(AbstractContextManager["Progress"]):
    """Prints lines and a bar of tqdm."""

    def __init__(self, say: Callable[[str], None], modules: int) -> None:
        from tqdm import tqdm

        self._say = say
        self._modules = modules
        self._ended = 0
        self._since = time.monotonic()
        self._bar = tqdm(unit="file", disable=None, leave=False)
        self.failed: dict[str, str] = {}

    def __exit__(self, *_error: object) -> None:
        self._bar.close()
        if self._modules:
            there = self._modules - len(self.failed)
            self._say(f"compiled {there} of {counted(self._modules, 'module')} in {self._seconds:.1f} s")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._since

    def step(self, done: int, of: int) -> None:
        self._bar.total = of
        self._bar.update(done - self._bar.n)

    def finished(self, module: str, error: str | None) -> None:
        self._ended += 1
        if error is not None:
            self.failed[module] = error
        result = "is compiled" if error is None else f"does not compile: {error}"
        self._bar.clear()
        self._say(f"{self._ended}/{self._modules} {self._seconds:6.1f} s  {module} {result}")
        self._bar.refresh()
