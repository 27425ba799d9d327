"""`flashinfer-perf export`: write a run in the format of another tool."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.files import verify_outputs, write_whole
from pytest_flashinfer_perf.printing import print_raw, say
from pytest_flashinfer_perf.report import exports, story
from pytest_flashinfer_perf.rows.formatting import counted
from pytest_flashinfer_perf.rows.run_file import Run

EXAMPLE = """examples:
  flashinfer-perf export run.json --to github-action-benchmark -o benchmarks.json
  flashinfer-perf export run.json --to bencher -o bmf.json
  flashinfer-perf export run.json --to openmetrics > /var/lib/node_exporter/flashinfer_perf.prom
  flashinfer-perf export run.json --to csv -o run.csv
"""


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(list(arguments))
    verify_outputs({"--output": args.output}, [args.run])
    [run] = story.read([args.run])
    text = exports.FORMATS[args.to](run)
    if args.output is None:
        print_raw(text)
    else:
        write_whole(args.output, text)
    for note in _notes(run):
        say(f"flashinfer-perf export: {note}")
    return 0


def _notes(run: Run) -> list[str]:
    """Notes on rows that are not ok, and on cases and benchmarks without a row."""
    statuses = Counter(str(row.status) for row in run.ours if row.status != "ok")
    counts = [(count, "case", status) for status, count in statuses.items()]
    counts += [(len(run.unmeasured), "case", "without a time")]
    counts += [(len(run.rows) - len(run.ours), "benchmark", "without the perf fixture left out")]
    return [f"{counted(count, what)} {how}" for count, what, how in counts if count]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "flashinfer-perf export",
        description="Write the medians and TFLOP/s of a run, and cases without a time, in the format of another tool.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN.json", help="A file written by pytest --benchmark-json.")
    parser.add_argument("--to", required=True, choices=exports.FORMATS, help="The format to write.")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="File to write. Default: the terminal.")
    return parser
