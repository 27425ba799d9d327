"""`flashinfer-perf merge`: join the files of shards into one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.errors import unknown
from pytest_flashinfer_perf.files import verify_outputs, write_json
from pytest_flashinfer_perf.printing import show
from pytest_flashinfer_perf.rows import merging
from pytest_flashinfer_perf.rows.formatting import counted

EXAMPLE = "example: flashinfer-perf merge shard-*.json --output run.json"


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(list(arguments))
    verify_outputs({"--output": args.output}, args.files)
    made = merging.merged([merging.read(path) for path in args.files], args.allow)
    write_json(args.output, made, indent=4)
    rows, files = counted(len(made["benchmarks"]), "row"), counted(len(args.files), "file")
    show([f"wrote {rows} of {files} to {args.output}"])
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "flashinfer-perf merge",
        description="Join the JSON files that the shards of a run wrote into the file of one run. Exits with 2, and "
        "writes nothing, if they are not the parts of one run.",
        epilog=EXAMPLE,
    )
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="A file written by pytest --perf-shard=I/N."
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="File to write the whole run to."
    )
    parser.add_argument(
        "--allow",
        type=_checks,
        default=(),
        metavar="A,B",
        help=f"Join in spite of these: {', '.join(merging.CHECKS)}. The last of duplicates is kept. Default: none.",
    )
    return parser


def _checks(text: str) -> list[str]:
    names = text.replace(",", " ").split()
    for name in names:
        if name not in merging.CHECKS:
            raise argparse.ArgumentTypeError(unknown(name, merging.CHECKS))
    return names
