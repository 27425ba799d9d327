"""`flashinfer-perf report`: what the files of runs tell, for people; nothing is measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import commands, file_io, printing
from pytest_flashinfer_perf.extensions.reports import markdown, page, story

EXAMPLE = """examples:
  flashinfer-perf report run.json -o report.html
  flashinfer-perf report attention.json gemm.json -o report.html
  flashinfer-perf report --markdown run.json >> "$GITHUB_STEP_SUMMARY"
"""


def main(arguments: Sequence[str]) -> int:
    description = "Write a report as an HTML page or as Markdown: of several runs the newest of each case."
    parser = commands.parser_of("report", description, EXAMPLE)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help="A file of pytest --benchmark-json.")
    default = "File to write. Default: report.html, or the terminal for Markdown."
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=default)
    parser.add_argument("--markdown", action="store_true", help="Write Markdown, for a comment on a pull request.")
    args = parser.parse_args(arguments)
    output = args.output if args.output or args.markdown else Path("report.html")
    file_io.verify_outputs({"--output": output}, args.runs)
    runs = story.read(args.runs)
    if args.markdown:
        commands.write(output, "\n".join(markdown.lines(runs)) + "\n")
        return 0
    page.write(output, runs)
    printing.show([f"wrote {output}"])
    return 0
