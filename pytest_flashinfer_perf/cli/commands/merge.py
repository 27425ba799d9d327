"""`flashinfer-perf merge`: the files of shards, as one."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.names import unknown
from pytest_flashinfer_perf.runs import merging
from pytest_flashinfer_perf.runs.formatting import counted

EXAMPLE = "example: flashinfer-perf merge shard-*.json --output run.json"


def main(arguments: Sequence[str]) -> int:
    said = _parser().parse_args(list(arguments))
    made = merging.merged([merging.read(path) for path in said.files], said.allow)
    write_whole(said.output, json.dumps(made, indent=4) + "\n")
    sys.stdout.write(
        f"wrote {counted(len(made['benchmarks']), 'row')} of {counted(len(said.files), 'file')} to {said.output}\n"
    )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "flashinfer-perf merge",
        description="One file of pytest-benchmark out of those that the shards of a run wrote.",
        epilog=EXAMPLE,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what pytest --perf-shard=i/n wrote")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the whole run")
    parser.add_argument(
        "--allow",
        type=_checks,
        default=(),
        metavar="A,B",
        help=f"merge all the same: {', '.join(merging.CHECKS)}; of duplicates the last is kept",
    )
    return parser


def _checks(text: str) -> list[str]:
    names = text.replace(",", " ").split()
    for name in names:
        if name not in merging.CHECKS:
            raise argparse.ArgumentTypeError(unknown(name, merging.CHECKS))
    return names
