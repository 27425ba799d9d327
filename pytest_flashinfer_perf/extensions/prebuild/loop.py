"""The pytest plugin of the compiling process (`-p`): tests are selected as usual, and compiled instead of run."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.api import (
    SETTINGS,
    Child,
    FlashinferPerfError,
    formatting,
    processes,
    stash,
    usage,
)
from pytest_flashinfer_perf.extensions.prebuild import building, modules
from pytest_flashinfer_perf.extensions.prebuild.modules import ModuleSearch
from pytest_flashinfer_perf.extensions.prebuild.patches import pretend_cudnn
from pytest_flashinfer_perf.plugin import options
from pytest_flashinfer_perf.spec.case import Case

# Files of others' options, which this process does not write, and how each says that there is none.
OF_OTHERS = {"benchmark_json": None, "benchmark_save": None, "benchmark_autosave": False, "xmlpath": None}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--prebuild-output", metavar="DIR", type=Path)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Before any plugin reads its options: the command line is that of the session which measures."""
    options.drop(config, Child.NONE)
    config.option.perf_suite = config.option.perf_suite or "default"  # it compiles for a GPU
    for dest, nothing in OF_OTHERS.items():
        if hasattr(config.option, dest):
            setattr(config.option, dest, nothing)


def pytest_configure() -> None:
    pretend_cudnn()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Register after the main plugin's hooks, which may have joined last, so that this loop comes before theirs."""
    session.config.pluginmanager.register(Prebuild(session.config), "flashinfer-perf-compiling")


def _cases(items: list[pytest.Item]) -> list[Case]:
    cases = [case for item in items if (case := stash.case_of(item)) is not None]
    if not cases:
        raise pytest.UsageError("nothing to prebuild: these arguments select no test with a case")
    return cases


class Prebuild:
    """Replaces pytest's loop over tests by one that compiles."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:  # pytest itself reports collection errors
            return None
        cases = _cases(session.items)
        output: Path | None = self._config.getoption("prebuild_output")
        with usage.errors_of_use(OSError):
            building.verify_ninja()
            if output:
                building.verify(output)
            needed = modules.needed(cases, self._config.stash[SETTINGS])
        self._say_needed(needed, len(cases), len(session.items) - len(cases))
        failed = self._built(needed.modules)
        session.testsfailed += len(failed)
        if output:
            building.write(output, [spec for name, spec in needed.modules.items() if name not in failed])
            self._say(f"on another machine: PYTHONPATH={output}")
        return True

    def _say_needed(self, needed: ModuleSearch, cases: int, others: int) -> None:
        modules = formatting.counted(len(needed.modules), "module")
        self._say(f"{formatting.counted(cases, 'case')}: {modules} of FlashInfer, {needed.cannot} cannot run there")
        if needed.lost:
            self._say("calls that failed without a GPU; the other modules they need are compiled when they run")
        for reason, number in needed.lost.items():
            self._say(f"{number:5}  {reason}")
        if others:
            self._say(
                f"also {formatting.counted(others, 'test')} without cases, whose modules are compiled when they run"
            )

    def _built(self, specs: Mapping[str, Any]) -> dict[str, str]:
        """Compile those that FlashInfer does not come with, and say how each ended; the errors by module."""
        waiting = [spec for spec in specs.values() if not spec.is_aot]
        self._say(f"{len(specs) - len(waiting)} come with FlashInfer, {len(waiting)} are compiled")
        ended, since = itertools.count(1), time.monotonic()
        failed: dict[str, str] = {}

        def finished(module: str, error: str | None) -> None:
            result = "is compiled" if error is None else f"does not compile: {error}"
            self._say(f"{next(ended)}/{len(waiting)} {time.monotonic() - since:6.1f} s  {module} {result}")
            if error is not None:
                failed[module] = error

        building.built(waiting, finished)
        there = len(waiting) - len(failed)
        self._say(f"compiled {there} of {formatting.counted(len(waiting), 'module')}")
        return failed

    def _say(self, sentence: str) -> None:
        self._config.get_terminal_writer().line(sentence)


# Start the compiling process: pytest with the same arguments, without GPUs and without results.

ARCHITECTURES = "FLASHINFER_CUDA_ARCH_LIST"
PLUGIN = __name__
PROBE = """
from pytest_flashinfer_perf.machine import capability
reason = capability.flashinfer_import_error()
if reason: raise SystemExit(reason)
from flashinfer.compilation_context import CompilationContext
print(" ".join(f"{major}.{minor}" for major, minor in sorted(CompilationContext().TARGET_CUDA_ARCHS)))
"""


class PrebuildError(FlashinferPerfError):
    """There is no GPU to compile for, or no compiler."""


def prebuild(arguments: Sequence[str], output: Path | None) -> int:
    """Compile; returns pytest's exit code: 0 if all modules are compiled, 1 if one does not compile."""
    own = [f"--prebuild-output={output}"] * bool(output)
    alone = ["-n0"] if find_spec("xdist") and "no:xdist" not in arguments else []  # overrides what comes before
    words = [sys.executable, "-m", "pytest", "-p", PLUGIN, *own, *arguments, *alone]
    variables = {ARCHITECTURES: architectures(), "CUDA_VISIBLE_DEVICES": ""}
    return processes.started(processes.Environment("prebuild", tuple(words), variables=variables))


def architectures() -> str:
    """The architectures that the variable names, or those of the GPUs here, which a child process looks up."""
    if named := os.environ.get(ARCHITECTURES, "").strip():
        return named
    if not (of_gpus := processes.answer(PROBE)):
        raise PrebuildError(f"there is no GPU to compile for: name one, such as {ARCHITECTURES}=9.0a")
    return of_gpus
