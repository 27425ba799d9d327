"""`flashinfer-perf report`, `export` and `merge`: other files made of the files of runs; nothing is measured."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.cli.commands import add_json, parser_of, show_json, write
from pytest_flashinfer_perf.errors import unknown
from pytest_flashinfer_perf.files import verify_outputs, write_json
from pytest_flashinfer_perf.gate.read import verify_once
from pytest_flashinfer_perf.printing import say, show
from pytest_flashinfer_perf.report import exports, markdown, story
from pytest_flashinfer_perf.report.html import page
from pytest_flashinfer_perf.rows import merging
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.rows.run_file import Run, RunError

RUN = "A file written by pytest --benchmark-json."
REPORTS = """examples:
  flashinfer-perf report run.json -o report.html
  flashinfer-perf report monday.json tuesday.json wednesday.json -o trend.html
  flashinfer-perf report --markdown base.json head.json >> "$GITHUB_STEP_SUMMARY"
"""
EXPORTS = """examples:
  flashinfer-perf export run.json -o run.csv
  flashinfer-perf export monday.json tuesday.json -o nights.csv
"""
MERGES = "example: flashinfer-perf merge shard-*.json --output run.json"


def report(arguments: Sequence[str]) -> int:
    description = "Write a report of one run, or of several with their trend, as an HTML page or as Markdown."
    parser = parser_of("report", description, REPORTS)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help=RUN)
    default = "File to write. Default: report.html, or the terminal for Markdown."
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=default)
    parser.add_argument("--markdown", action="store_true", help="Write Markdown, for a comment on a pull request.")
    args = parser.parse_args(arguments)
    output = args.output if args.output or args.markdown else Path("report.html")
    verify_outputs({"--output": output}, args.runs)
    runs = story.read(args.runs)
    if args.markdown:
        write(output, "\n".join(markdown.lines(runs)) + "\n")
        return 0
    absent = page.missing()
    if absent:
        raise RunError(absent)
    page.write(output, runs)
    show([f"wrote {output}"])
    return 0


def export(arguments: Sequence[str]) -> int:
    description = "Write the medians and TFLOP/s of runs, and cases without a time, as CSV."
    parser = parser_of("export", description, EXPORTS)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help=RUN)
    parser.add_argument("--to", default="csv", choices=("csv",), help="The format to write. Default: csv.")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="File to write. Default: the terminal.")
    args = parser.parse_args(arguments)
    verify_outputs({"--output": args.output}, args.runs)
    runs = story.read(args.runs)
    verify_once(runs)
    write(args.output, exports.as_csv(*runs))
    for run in runs:
        of = f"{run.name}: " if len(runs) > 1 else ""
        for note in _notes(run):
            say(f"flashinfer-perf export: {of}{note}")
    return 0


def _notes(run: Run) -> list[str]:
    """Notes on rows that are not ok, and on cases and benchmarks without a row."""
    statuses = Counter(str(row.status) for row in run.ours if row.status != "ok")
    counts = [(count, "case", status) for status, count in statuses.items()]
    counts += [(len(run.unmeasured), "case", "without a time")]
    counts += [(len(run.rows) - len(run.ours), "benchmark", "without the perf fixture left out")]
    return [f"{counted(count, what)} {how}" for count, what, how in counts if count]


def merge(arguments: Sequence[str]) -> int:
    description = "Join the JSON files that the shards of a run wrote into the file of one run. Exits with 2, and "
    description += "writes nothing, if they are not the parts of one run."
    parser = parser_of("merge", description, MERGES)
    shards, whole = "A file written by pytest --perf-shard=I/N.", "File to write the whole run to."
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=shards)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=whole)
    allow = f"Join in spite of these: {', '.join(merging.CHECKS)}. The last of duplicates is kept. Default: none."
    parser.add_argument("--allow", type=_checks, default=(), metavar="A,B", help=allow)
    add_json(parser)
    args = parser.parse_args(arguments)
    verify_outputs({"--output": args.output}, args.files)
    made = merging.merged([merging.read(path) for path in args.files], args.allow)
    # Indented, thousands of rows take three times as long to write, and twice the room.
    write_json(args.output, made, indent=None)
    rows, files = len(made["benchmarks"]), len(args.files)
    if args.as_json:
        show_json({"output": str(args.output), "rows": rows, "files": files})
    else:
        show([f"wrote {counted(rows, 'row')} of {counted(files, 'file')} to {args.output}"])
    return 0


def _checks(text: str) -> list[str]:
    names = text.replace(",", " ").split()
    for name in names:
        if name not in merging.CHECKS:
            raise argparse.ArgumentTypeError(unknown(name, merging.CHECKS))
    return names
