"""Ask a question in a separate process, so that this one does not initialise a GPU."""

from __future__ import annotations

import subprocess
import sys

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.runs.formatting import last_lines


class ProbeError(FlashinferPerfError):
    """The process failed; the sentence is the last that it wrote."""


def answer(program: str, *arguments: str) -> str:
    """What the Python program prints."""
    words = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    if done.returncode:
        raise ProbeError(last_lines(done.stderr, 1))
    return done.stdout.strip()
