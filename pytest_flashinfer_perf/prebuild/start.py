"""Start the compiling process: pytest with the same arguments, without GPUs and without results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.running.workers import VISIBLE

ARCHITECTURES = "FLASHINFER_CUDA_ARCH_LIST"
PLUGIN = "pytest_flashinfer_perf.prebuild.loop"
PROBE = """
from pytest_flashinfer_perf.machine import capability
reason = capability.flashinfer_import_error()
if reason: raise SystemExit(reason)
from flashinfer.compilation_context import CompilationContext
print(" ".join(f"{major}.{minor}" for major, minor in sorted(CompilationContext().TARGET_CUDA_ARCHS)))
"""
# Options that write or read results or start workers, which the compiling process does not.
OF_RESULTS = ("benchmark-json", "benchmark-save", "junit-xml", "junitxml", "perf-csv", "perf-html")
OF_THE_GATE = ("perf-gate", "perf-save-baseline")
OF_WORKERS = ("dist", "tx", "px", "maxprocesses")
SWITCHES = ("benchmark-autosave", "perf-resume", "perf-prebuild")


class PrebuildError(FlashinferPerfError):
    """There is no GPU to compile for, or no compiler."""


def prebuild(arguments: Sequence[str], output: Path | None = None, report: Path | None = None) -> int:
    """Compile; returns pytest's exit code: 0 if all modules are compiled, 1 if one does not compile."""
    own = [f"--prebuild-output={output}"] * bool(output) + [f"--prebuild-report={report}"] * bool(report)
    alone = ["-n0"] if find_spec("xdist") and "no:xdist" not in arguments else []  # overrides an ini file
    words = [sys.executable, "-m", "pytest", "-p", PLUGIN, *own, *_selecting(arguments), *alone]
    variables = {ARCHITECTURES: architectures(), VISIBLE: ""}
    return processes.started(processes.Environment("prebuild", tuple(words), variables=variables))


def _selecting(arguments: Sequence[str]) -> list[str]:
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known.add_argument("-n", "--numprocesses")
    for name in (*OF_RESULTS, *OF_THE_GATE, *OF_WORKERS):
        known.add_argument(f"--{name}")
    for name in SWITCHES:
        known.add_argument(f"--{name}", action="store_true")
    return known.parse_known_args(list(arguments))[1]


def architectures() -> str:
    """The architectures that the variable names, or those of the GPUs here, which a child process looks up."""
    named = os.environ.get(ARCHITECTURES, "").strip()
    if named:
        return named
    found = processes.answer(PROBE)
    if not found:
        raise PrebuildError(f"there is no GPU to compile for: name one, such as {ARCHITECTURES}=9.0a")
    return found
