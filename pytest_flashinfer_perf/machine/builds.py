"""FlashInfer's builds of its modules: not part of a case's time, and one error for all cases of a broken one."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.machine import patches

NINJA_FAILED = "Ninja build failed"
# nvcc's `file(12): error: ...`, gcc's `file:12:3: error: ...`, what linkers and shells say of what is not there.
ERROR = re.compile(r"error\b|undefined reference|cannot find|not found|No such file", re.IGNORECASE)
FAILED = "FAILED: "
OF_NINJA = ("ninja: ", FAILED, "[")

broken: dict[str, str] = {}  # modules that this process knows not to compile, and their errors
_told: list[Callable[[str], None]] = []
_paused: list[Callable[[], AbstractContextManager[None]]] = []


class CompileError(FlashinferPerfError, RuntimeError):
    """One of FlashInfer's modules does not compile."""

    outcome = "not-compiled"


def tell(begins: Callable[[str], None]) -> Callable[[], None]:
    """Call this with the name of each module that this process begins to compile, until what is returned is called."""
    _told.append(begins)
    return functools.partial(_told.remove, begins)


@contextmanager
def pausing(clock: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Let this stop a clock while a module compiles."""
    _paused.append(clock)
    try:
        yield
    finally:
        _paused.remove(clock)


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
                with contextlib.ExitStack() as clocks:
                    for paused in _paused:
                        clocks.enter_context(paused())
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
    return next(iter(errors or printed or output.strip().splitlines()[-1:]), "ninja ended without a word")
