"""`--perf-prebuild`: before a session starts its workers or measures anything, in a process of its own."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from pytest_flashinfer_perf.prebuild import start
from pytest_flashinfer_perf.running import compiling

ALL_THERE, SOME_BROKEN = 0, 1


def compile_first(config: pytest.Config) -> None:
    """What does not compile is known from now on, also to the workers."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "broken.json")
        code = start.prebuild(config.invocation_params.args, report=report)
        if code not in (ALL_THERE, SOME_BROKEN) or not report.exists():
            raise pytest.UsageError(f"--perf-prebuild ended with pytest's code {code}, see above")
        compiling.know(json.loads(report.read_text(encoding="utf-8")))
