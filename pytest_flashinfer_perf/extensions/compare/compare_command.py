"""`flashinfer-perf compare`: verdicts on stored runs; nothing is measured."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import commands, judge, run_file
from pytest_flashinfer_perf.extensions.compare import judging

EXAMPLE = "example: flashinfer-perf compare --base main-*.json --head pr-*.json --markdown verdicts.md"


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    base, head = run_file.read_all(args.base, args.storage), run_file.read_all(args.head, args.storage)
    if args.paired and len(base) != len(head):
        raise run_file.RunError(f"--paired needs as many files of --base as of --head, got {len(base)} and {len(head)}")
    rules = judging.rules(args, paired=args.paired, runs=[*base, *head])
    return judging.publish(judge(base, head, rules), args)


def parser() -> argparse.ArgumentParser:
    result = commands.parser_of(
        "compare",
        "Compare JSON files of pytest-benchmark, one per process, with those of a baseline, and print a "
        "verdict for each case. Exits with 0 if no slowdown is found, with 1 if a case is slower or wrong, with 2 if "
        "the comparison is incomplete.",
        EXAMPLE,
    )
    base, head = "The baseline: files, folders or saved names.", "The new runs, judged against --base, named likewise."
    result.add_argument("--base", nargs="+", required=True, metavar="FILE", help=base)
    result.add_argument("--head", nargs="+", required=True, metavar="FILE", help=head)
    paired = "The n-th file of --base and the n-th of --head were measured one after the other, which reduces noise."
    result.add_argument("--paired", action="store_true", help=paired)
    storage = "Folder of saved runs. Default: %(default)s."
    result.add_argument("--storage", type=Path, default=run_file.STORAGE, metavar="DIR", help=storage)
    judging.add_options(result)
    return result
