"""`flashinfer-perf report`: runs as a page, or as Markdown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.report import markdown, runs
from pytest_flashinfer_perf.report.html import page
from pytest_flashinfer_perf.runs.run_file import Run, RunError

EXAMPLE = """examples:
  flashinfer-perf report run.json -o report.html
  flashinfer-perf report monday.json tuesday.json wednesday.json -o trend.html
  flashinfer-perf report --markdown base.json head.json >> "$GITHUB_STEP_SUMMARY"
"""


def main(arguments: Sequence[str]) -> int:
    """1 where there is nothing to report of: a file that is no run, or an extra that is not installed."""
    said = _parser().parse_args(list(arguments))
    try:
        read = runs.read(said.runs)
        _verify_other(said.output, said.runs)
        return _markdown(read, said.output) if said.markdown else _page(read, said.output or Path("report.html"))
    except (RunError, OSError) as error:
        sys.stderr.write(f"flashinfer-perf report: {error}\n")
        return 1


def _verify_other(output: Path | None, read: Sequence[Path]) -> None:
    if output and output.resolve() in [path.resolve() for path in read]:
        raise RunError(f"{output} is one of the runs: write to another file")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "flashinfer-perf report",
        description="One page, or Markdown, of what runs measured; of several runs the trend of each case too.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help="what pytest --benchmark-json wrote")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="report.html, or Markdown to the terminal")
    parser.add_argument("--markdown", action="store_true", help="for a comment on a pull request")
    return parser


def _markdown(read: Sequence[Run], output: Path | None) -> int:
    text = "\n".join(markdown.lines(read)) + "\n"
    if output is None:
        sys.stdout.write(text)
    else:
        write_whole(output, text)
    return 0


def _page(read: Sequence[Run], output: Path) -> int:
    absent = page.missing()
    if absent:
        raise RunError(absent)
    page.write(output, read)
    sys.stdout.write(f"wrote {output}\n")
    return 0
