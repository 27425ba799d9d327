"""Measure suspects again in new processes, since the same process would have the same memory layout."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.launch.processes import Environment
from pytest_flashinfer_perf.runs.run_file import Run, RunError

PROCESSES = 2
CONFIRMS = "FLASHINFER_PERF_CONFIRMS"  # set in such a process, which only measures


def confirms() -> bool:
    return CONFIRMS in os.environ


def measured(config: pytest.Config, tests: Sequence[str]) -> list[Run]:
    """Run these tests alone, with the options of this session; raises RunError if they cannot be measured."""
    with tempfile.TemporaryDirectory(prefix="flashinfer-perf-") as folder:
        return [_one(config, tests, Path(folder, str(nth))) for nth in range(PROCESSES)]


def _one(config: pytest.Config, tests: Sequence[str], folder: Path) -> Run:
    folder.mkdir()
    here, start = config.invocation_params, (sys.executable, "-m", "pytest")
    again = Environment("this session", (*start, *here.args), here.dir, {CONFIRMS: "1"})
    done = processes.ran(again, list(_elsewhere(config, folder)), folder / "run", tests)
    if done.code not in (processes.PASSED, processes.TESTS_FAILED):
        raise RunError(f"not measured again, its process exited with code {done.code}: {processes.end(done.log, 1)}")
    if not set(tests) <= {row.fullname for row in done.run.rows}:
        raise RunError("not measured again: its process has no row of it")
    return done.run


def _elsewhere(config: pytest.Config, folder: Path) -> Iterator[str]:
    """Options that keep the new process from overwriting the files of this session."""
    yield f"--benchmark-storage=file://{folder}"
    if config.pluginmanager.hasplugin("cacheprovider"):
        yield f"--override-ini=cache_dir={folder}"
    if config.getoption("xmlpath", None):
        yield f"--junitxml={folder / 'junit.xml'}"
