"""`flashinfer-perf report` and `export`: other files made of the files of runs; nothing is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.cli.commands import parser_of, write
from pytest_flashinfer_perf.extensions.pages import page
from pytest_flashinfer_perf.files import verify_outputs
from pytest_flashinfer_perf.gate.read import verify_once
from pytest_flashinfer_perf.printing import say, show
from pytest_flashinfer_perf.report import exports, markdown, story
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
        sections = loading.joined(loading.manager().hook.pytest_perf_sections(runs=runs))
        write(output, "\n".join(markdown.lines(runs, sections)) + "\n")
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
