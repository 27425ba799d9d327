"""The time limit of a case; compiling and waiting for a lock do not count.

Python's faulthandler keeps the time, in a thread of its own that needs no GIL: what hangs in C is ended too.
"""

from __future__ import annotations

import faulthandler
import functools
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer
from typing import IO, Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.machine import patches
from pytest_flashinfer_perf.rows.formatting import last_lines
from pytest_flashinfer_perf.session.case_endings import NOT_COMPILED

SOON = 0.001
LAST_WORDS = 0.5  # before the end: where the GIL is free, there is time for a sentence


class Limit:
    """Limits one case after the other. `announce` is called shortly before a process that is not replaced is ended."""

    def __init__(self, seconds: float, words: IO[str], announce: Callable[[], None] | None = None) -> None:
        self._seconds = seconds
        self._words = words
        self._announce = announce
        self._left = 0.0
        self._since: float | None = None
        self._timer: Timer | None = None

    @contextmanager
    def of_one(self) -> Iterator[None]:
        self.again()
        _running.append(self)
        try:
            yield
        finally:
            _running.remove(self)
            self._halt()

    def again(self) -> None:
        """Give the whole time again, as another part of the case begins that may hang."""
        self._halt()
        self._left = self._seconds
        self._run()

    @contextmanager
    def halted(self) -> Iterator[None]:
        """Stop the clock for whatever is not the case's own time."""
        if self._since is None:
            yield
            return
        self._halt()
        try:
            yield
        finally:
            self._run()

    def _run(self) -> None:
        self._since = time.monotonic()
        faulthandler.dump_traceback_later(max(self._left, SOON), exit=True, file=self._words)
        if self._announce is not None:
            self._timer = Timer(max(self._left - LAST_WORDS, 0), self._announce)
            self._timer.daemon = True
            self._timer.start()

    def _halt(self) -> None:
        if self._since is None:
            return
        faulthandler.cancel_dump_traceback_later()
        if self._timer is not None:
            self._timer.cancel()
        self._left -= time.monotonic() - self._since
        self._since = None


_running: list[Limit] = []


def again() -> None:
    for limit in _running[-1:]:
        limit.again()


@contextmanager
def not_counted() -> Iterator[None]:
    """Exclude what runs meanwhile from the case's time; without a limit, do nothing."""
    if not _running:
        yield
        return
    with _running[-1].halted():
        yield


# Exclude FlashInfer's compilation from a case's time, and fail all cases of a module that does not compile.

NINJA_FAILED = "Ninja build failed"
# nvcc's `file(12): error: ...`, gcc's `file:12:3: error: ...`, what linkers and shells say of what is not there.
ERROR = re.compile(r"error\b|undefined reference|cannot find|not found|No such file", re.IGNORECASE)
FAILED = "FAILED: "
OF_NINJA = ("ninja: ", FAILED, "[")

broken: dict[str, str] = {}  # modules that this process knows not to compile, and their errors
_told: list[Callable[[str], None]] = []


class CompileError(FlashinferPerfError, RuntimeError):
    """One of FlashInfer's modules does not compile."""

    outcome = NOT_COMPILED


def tell(begins: Callable[[str], None]) -> Callable[[], None]:
    """Call this with the name of each module that this process begins to compile, until what is returned is called."""
    _told.append(begins)
    return functools.partial(_told.remove, begins)


def watch() -> None:
    """Watch FlashInfer compile modules, from its import on."""
    patches.wrap_builds(_watched)


def _watched(build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def built(spec: Any) -> Any:
        if spec.name not in broken:
            for begins in _told if not getattr(spec, "is_compiled", False) else ():
                begins(spec.name)
            try:
                with not_counted():
                    return build(spec)
            except RuntimeError as error:
                if NINJA_FAILED not in str(error):
                    raise
                broken[spec.name] = first_error(str(error))
        raise CompileError(
            f"FlashInfer's module {spec.name} does not compile: {broken[spec.name]}\n"
            f"all that its compiler says: ninja -C {ninja_folder(spec)} -f {spec.ninja_path}"
        )

    return built


def ninja_folder(spec: Any) -> Any:
    """Where FlashInfer runs ninja for a module: before 0.6.3 all modules of a release shared one folder."""
    return spec.build_dir if hasattr(spec, "build_dir") else spec.ninja_path.parents[1]


def first_error(output: str) -> str:
    """The first error in ninja's output. Flags may contain `error`; messages come on the lines below the command."""
    lines = [line.strip() for line in output.partition(FAILED)[2].splitlines()[2:]]
    printed = [line for line in lines if line and not line.startswith(OF_NINJA)]
    errors = [line for line in printed if ERROR.search(line)]
    return next(iter(errors or printed), last_lines(output, 1) or "ninja ended without a word")
