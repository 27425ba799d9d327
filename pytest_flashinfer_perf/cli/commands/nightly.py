"""`flashinfer-perf publish` and `watch`: what happened over many nights; nothing is measured."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pytest_flashinfer_perf.cli.commands import parser_of
from pytest_flashinfer_perf.gate import read
from pytest_flashinfer_perf.printing import show
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.watch import branch, record

PUBLISHES = "example: flashinfer-perf publish nightly.json --remote origin"
WATCHES = "example: flashinfer-perf watch perf-data -o site --alarms alarms"
BRANCH, REMOTE = "perf-data", "origin"


def publish(arguments: Sequence[str]) -> int:
    args = publish_parser().parse_args(arguments)
    runs = read.read(args.files)
    with branch.opened(args.remote, args.branch) as there:
        commit = there.grow(lambda known: record.added(runs, known, args.branch), f"Add {counted(len(runs), 'run')}")
    said = f"in commit {commit[:10]}" if commit else "which had all of it: nothing was added"
    show([f"{counted(len(runs), 'run')} in branch {args.branch} of {args.remote}, {said}"])
    return 0


def publish_parser() -> argparse.ArgumentParser:
    made = parser_of(
        "publish",
        "Add runs to a branch of a git remote, whose files only grow: JSON, a file per month. The current checkout is "
        "not touched. A run that is there is not added again.",
        PUBLISHES,
    )
    made.add_argument("files", nargs="+", metavar="FILE", help="JSON files of pytest-benchmark, or folders of them.")
    _add_branch(made)
    return made


def _add_branch(parser: argparse.ArgumentParser) -> None:
    remote = "Name or address of the remote, as git takes it. Default: %(default)s."
    parser.add_argument("--remote", default=REMOTE, metavar="NAME", help=remote)
    branch_help = "The branch. Default: %(default)s."
    parser.add_argument("--branch", default=BRANCH, metavar="NAME", help=branch_help)
