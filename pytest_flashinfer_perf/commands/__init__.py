"""The commands of `flashinfer-perf` beside bench and run, each imported when it is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

HELP = {
    "compare": "judge files of results against a baseline's",
    "ab": "measure two environments in turns, and judge what differs",
    "prove": "see whether the gate's verdicts are right on this machine",
    "calibrate": "measure this machine's own noise, for the gate to know",
    "history": "find when cases changed, over many stored runs",
    "prebuild": "compile the kernel modules that cases need, before anything is timed",
    "merge": "one file of results out of those of shards",
    "report": "one HTML page, or Markdown, of what runs measured",
    "export": "a run as CSV, or as github-action-benchmark, Bencher or Prometheus read it",
    "doctor": "what this machine can measure, and why not the rest",
    "list": "routines with their backends, tiers, models and flags",
}


def main(name: str, arguments: Sequence[str]) -> int:
    from pytest_flashinfer_perf.commands.judging import ERRORS
    from pytest_flashinfer_perf.gate.verdict import COULD_NOT_JUDGE

    command = importlib.import_module(f"{__name__}.{name}")
    try:
        return int(command.main(arguments))
    except ERRORS as error:
        sys.stderr.write(f"flashinfer-perf {name}: {error}\n")
        return COULD_NOT_JUDGE
