"""Ask a Python program in a process of its own, for what would settle or spoil something in this one."""

from __future__ import annotations

import os
import subprocess
import sys

from pytest_flashinfer_perf.errors import FlashinferPerfError


class NoAnswerError(FlashinferPerfError):
    """The program failed; the sentence is the last line of its errors."""


def answer(program: str, *arguments: str, **variables: str) -> str:
    """What it prints, with these variables beside those of this process."""
    words, environment = [sys.executable, "-c", program, *arguments], {**os.environ, **variables}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise NoAnswerError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    return done.stdout.strip()
