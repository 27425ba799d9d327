"""`--perf-prebuild`: compile in a child process, before the session starts workers or measures anything."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from pytest_flashinfer_perf.prebuild import start
from pytest_flashinfer_perf.running import compiling

ALL_THERE, SOME_BROKEN = 0, 1


def compile_first(config: pytest.Config) -> None:
    """Compile, and remember the modules that fail to compile, also for the workers."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "broken.json")
        code = start.prebuild(config.invocation_params.args, report=report)
        if code not in (ALL_THERE, SOME_BROKEN) or not report.exists():
            raise pytest.UsageError(f"--perf-prebuild failed with pytest's exit code {code}, see the output above")
        compiling.know(json.loads(report.read_text(encoding="utf-8")))
