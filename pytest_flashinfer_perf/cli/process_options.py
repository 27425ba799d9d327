"""Options of the commands that start processes to measure in."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_flashinfer_perf.config.option import option, whole

PYTHON = option(
    "--python",
    default=sys.executable,
    metavar="CMD",
    help="Folder of a virtual environment, a Python, or a command to measure with. Default: this Python.",
)


def add_output(parser: argparse.ArgumentParser, command: str) -> None:
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help=f"New folder for results and logs. Default: {command}-DATE-TIME."
    )


def add_pairs(parser: argparse.ArgumentParser) -> None:
    sure = "Measure up to N pairs of base and head, fewer for a case whose verdict is certain. Default: %(default)s."
    unsure = "Go on up to N pairs for cases that are AMBIGUOUS after --pairs. Default: %(default)s."
    parser.add_argument("--pairs", type=whole(1), default=5, metavar="N", help=sure)
    parser.add_argument("--most-pairs", type=whole(1), default=10, metavar="N", help=unsure)
