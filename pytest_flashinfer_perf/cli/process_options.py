"""Options of the commands that start processes to measure in."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_flashinfer_perf.config.option import option

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
