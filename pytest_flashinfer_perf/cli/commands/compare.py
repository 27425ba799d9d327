"""`flashinfer-perf compare`: compare files of runs with those of a baseline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.cli import judging
from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.read import STORAGE
from pytest_flashinfer_perf.rows.run_file import RunError

EXAMPLE = "example: flashinfer-perf compare --base main-*.json --head pr-*.json --markdown verdicts.md"


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    base, head = read.read(args.base, args.storage), read.read(args.head, args.storage)
    if args.paired and len(base) != len(head):
        raise RunError(f"--paired needs as many files of --base as of --head, got {len(base)} and {len(head)}")
    rules = judging.rules(args, paired=args.paired, runs=[*base, *head])
    return judging.publish(judge(base, head, rules), args)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "flashinfer-perf compare",
        description="Compare JSON files of pytest-benchmark, one per process, with those of a baseline, and print a "
        "verdict for each case. Exits with 0 if no slowdown is found, with 1 if a case is slower or wrong, with 2 if "
        "the comparison is incomplete.",
        epilog=EXAMPLE,
    )
    made.add_argument(
        "--base", nargs="+", required=True, metavar="FILE", help="The baseline: files, folders or saved names."
    )
    made.add_argument(
        "--head", nargs="+", required=True, metavar="FILE", help="The new runs, judged against --base, named likewise."
    )
    made.add_argument(
        "--paired",
        action="store_true",
        help="The n-th file of --base and the n-th of --head were measured one after the other, which reduces noise.",
    )
    made.add_argument(
        "--storage", type=Path, default=STORAGE, metavar="DIR", help="Folder of saved runs. Default: %(default)s."
    )
    judging.add_options(made)
    return made
