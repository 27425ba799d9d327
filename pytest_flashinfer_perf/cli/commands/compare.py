"""`flashinfer-perf compare`: files of results against a baseline's, after the fact."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.cli import judging
from pytest_flashinfer_perf.gate import runs
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.runs import STORAGE
from pytest_flashinfer_perf.runs.run_file import RunError

EXAMPLE = "example: flashinfer-perf compare --base main-*.json --head pr-*.json --markdown verdicts.md"


def main(arguments: Sequence[str]) -> int:
    said = parser().parse_args(arguments)
    base, head = runs.read(said.base, said.storage), runs.read(said.head, said.storage)
    if said.paired and len(base) != len(head):
        raise RunError(f"--paired: {len(base)} files of the baseline and {len(head)} of this run are not pairs")
    held_to = judging.rules(said, {gpu for run in head for gpu in run.gpus}, paired=said.paired)
    return judging.told(judge(base, head, held_to), said)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "flashinfer-perf compare",
        description="Judge files of pytest-benchmark, one per process, against those of a baseline.",
        epilog=EXAMPLE,
    )
    made.add_argument("--base", nargs="+", required=True, metavar="FILE", help="files, folders or stored names")
    made.add_argument("--head", nargs="+", required=True, metavar="FILE", help="files, folders or stored names")
    made.add_argument("--paired", action="store_true", help="the n-th files of both ran next to each other")
    made.add_argument("--storage", type=Path, default=STORAGE, metavar="DIR", help="pytest-benchmark's (.benchmarks)")
    judging.add_options(made)
    return made
