"""Exclude FlashInfer's compilation from a case's time, and fail all cases of a module that does not compile."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.running.limit import not_counted
from pytest_flashinfer_perf.running.outcomes import NOT_COMPILED
from pytest_flashinfer_perf.runs.formatting import last_lines

NINJA_FAILED = "Ninja build failed"
# nvcc's `file(12): error: ...`, gcc's `file:12:3: error: ...`, what linkers and shells say of what is not there.
ERROR = re.compile(r"error\b|undefined reference|cannot find|not found|No such file", re.IGNORECASE)
FAILED = "FAILED: "
OF_NINJA = ("ninja: ", FAILED, "[")

_broken: dict[str, str] = {}
_told: list[Callable[[str], None]] = []


class CompileError(FlashinferPerfError, RuntimeError):
    """One of FlashInfer's modules does not compile."""

    outcome = NOT_COMPILED


def broken() -> Mapping[str, str]:
    """Modules that this process knows not to compile, and their errors."""
    return _broken


def know(modules: Mapping[str, str]) -> None:
    """Remember the modules that did not compile in another process."""
    _broken.update(modules)


def tell(begins: Callable[[str], None]) -> Callable[[], None]:
    """Call this with the name of each module that this process begins to compile, until what is returned is called."""
    _told.append(begins)
    return functools.partial(_told.remove, begins)


def watch() -> None:
    """From FlashInfer's import on; a module is compiled when somebody first asks for it."""
    library = sys.modules.get("flashinfer.jit.core")
    spec = getattr(library, "JitSpec", None)
    if spec is not None and not hasattr(spec.build_and_load, "__wrapped__"):
        spec.build_and_load = _watched(spec.build_and_load)


def _watched(build: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(build)
    def built(spec: Any) -> Any:
        if spec.name not in _broken:
            for begins in _told if not getattr(spec, "is_compiled", False) else ():
                begins(spec.name)
            try:
                with not_counted():
                    return build(spec)
            except RuntimeError as error:
                if NINJA_FAILED not in str(error):
                    raise
                _broken[spec.name] = first_error(str(error))
        raise CompileError(
            f"FlashInfer's module {spec.name} does not compile: {_broken[spec.name]}\n"
            f"all that its compiler says: ninja -C {spec.build_dir} -f {spec.ninja_path}"
        )

    return built


def first_error(output: str) -> str:
    """The first error in ninja's output. Flags may contain `error`; messages come on the lines below the command."""
    lines = [line.strip() for line in output.partition(FAILED)[2].splitlines()[2:]]
    printed = [line for line in lines if line and not line.startswith(OF_NINJA)]
    errors = [line for line in printed if ERROR.search(line)]
    return next(iter(errors or printed), _last_line(output))


def _last_line(output: str) -> str:
    return last_lines(output, 1) or "ninja ended without a word"
