"""`flashinfer-perf report`: write a report of runs as an HTML page or as Markdown."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.files import verify_outputs, write_whole
from pytest_flashinfer_perf.printing import print_raw, show
from pytest_flashinfer_perf.report import markdown, story
from pytest_flashinfer_perf.report.html import page
from pytest_flashinfer_perf.rows.run_file import Run, RunError

EXAMPLE = """examples:
  flashinfer-perf report run.json -o report.html
  flashinfer-perf report monday.json tuesday.json wednesday.json -o trend.html
  flashinfer-perf report --markdown base.json head.json >> "$GITHUB_STEP_SUMMARY"
"""


def main(arguments: Sequence[str]) -> int:
    args = _parser().parse_args(list(arguments))
    output = args.output if args.output or args.markdown else Path("report.html")
    verify_outputs({"--output": output}, args.runs)
    read = story.read(args.runs)
    return _markdown(read, output) if args.markdown else _page(read, output)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "flashinfer-perf report",
        description="Write a report of one run, or of several with their trend, as an HTML page or as Markdown.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN.json", help="A file written by pytest --benchmark-json."
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="File to write. Default: report.html, or the terminal for Markdown.",
    )
    parser.add_argument("--markdown", action="store_true", help="Write Markdown, for a comment on a pull request.")
    return parser


def _markdown(read: Sequence[Run], output: Path | None) -> int:
    text = "\n".join(markdown.lines(read)) + "\n"
    if output is None:
        print_raw(text)
    else:
        write_whole(output, text)
    return 0


def _page(read: Sequence[Run], output: Path) -> int:
    absent = page.missing()
    if absent:
        raise RunError(absent)
    page.write(output, read)
    show([f"wrote {output}"])
    return 0
