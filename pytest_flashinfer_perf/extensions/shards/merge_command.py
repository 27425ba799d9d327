"""`flashinfer-perf merge`: the file of one run, made of those of its shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import commands, file_io, formatting, printing
from pytest_flashinfer_perf.extensions.shards import merging

EXAMPLE = "example: flashinfer-perf merge shard-*.json --output run.json"


def main(arguments: Sequence[str]) -> int:
    description = "Join the JSON files that the shards of a run wrote into the file of one run. Exits with 2, and "
    description += "writes nothing, if they are not the parts of one run."
    parser = commands.parser_of("merge", description, EXAMPLE)
    shards, whole = "A file written by pytest --perf-shard=I/N.", "File to write the whole run to."
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=shards)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=whole)
    args = parser.parse_args(arguments)
    file_io.verify_outputs({"--output": args.output}, args.files)
    merged = merging.merged([merging.read(path) for path in args.files])
    # Indented, thousands of rows take three times as long to write, and twice the room.
    file_io.write_json(args.output, merged, indent=None)
    rows, files = len(merged["benchmarks"]), len(args.files)
    printing.show([f"wrote {formatting.counted(rows, 'row')} of {formatting.counted(files, 'file')} to {args.output}"])
    return 0
