"""Measure suspects again in new processes, since the same process would have the same memory layout."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_flashinfer_perf.gate import runs
from pytest_flashinfer_perf.runs.formatting import last_lines
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
    named, output = folder / "only", folder / "run.json"
    named.write_text("".join(f"{test}\n" for test in tests), encoding="utf-8")
    words = [sys.executable, "-m", "pytest", *config.invocation_params.args]
    done = subprocess.run(  # noqa: S603 - this session's own command
        [*words, f"--perf-only={named}", f"--benchmark-json={output}", *_elsewhere(config, folder)],
        cwd=config.invocation_params.dir,
        env={**os.environ, CONFIRMS: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if not output.is_file() or not output.stat().st_size:
        last = last_lines(done.stdout + done.stderr, 1)
        raise RunError(f"not measured again, its process exited with code {done.returncode}: {last}")
    run = runs.read([output])[0]
    if not set(tests) <= {row.fullname for row in run.rows}:
        raise RunError("not measured again: its process has no row of it")
    return run


def _elsewhere(config: pytest.Config, folder: Path) -> Iterator[str]:
    """Options that keep the new process from overwriting the files of this session."""
    yield f"--benchmark-storage=file://{folder}"
    if config.pluginmanager.hasplugin("cacheprovider"):
        yield f"--override-ini=cache_dir={folder}"
    if config.getoption("xmlpath", None):
        yield f"--junitxml={folder / 'junit.xml'}"
