"""The commands of `flashinfer-perf` other than bench and run, each imported when it is called."""

from __future__ import annotations

import argparse
import importlib
import re
import signal
import textwrap
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.errors import FlashinferPerfError, missing_libraries_named
from pytest_flashinfer_perf.files import as_json, write_whole
from pytest_flashinfer_perf.machine.garbage import importing
from pytest_flashinfer_perf.printing import print_raw, say

# Where a command is not the function `main` of a module of its own name.
SHARED = {
    **dict.fromkeys(("report", "export", "merge"), "files"),
    **dict.fromkeys(("publish", "watch"), "nightly"),
}
INTERRUPTED = 128 + signal.SIGINT  # as a shell has it
HELP = {
    "record": "Record what a program calls of FlashInfer, to measure exactly that.",
    "list": "List routines with their backends, tiers, models and flags.",
    "doctor": "Show what can be measured on this machine, and why the rest cannot.",
    "prebuild": "Compile the FlashInfer modules that cases need, before a run or for another machine.",
    "report": "Write a report of runs as an HTML page or as Markdown.",
    "export": "Write runs as CSV.",
    "compare": "Compare JSON files of runs with those of a baseline, and print a verdict for each case.",
    "ab": "Measure two environments alternately on one GPU, and print a verdict for each case.",
    "bisect": "Find the commit or the release in which cases became slower, faster or wrong.",
    "history": "Find the runs in which cases became slower or faster, in a folder of many runs.",
    "publish": "Add runs to a branch of a git remote, a file per month, which only grows.",
    "watch": "Make a site, and alarms, of the runs of many nights that were published.",
    "prove": "Test the gate itself: its false alarms and the slowdowns that it misses on this machine.",
    "tune-report": "Time every tactic of FlashInfer's tuner, and show what its choices cost.",
    "merge": "Join the JSON files of shards into the file of one run.",
    "model": "Show the GPU time of one step of a model, kernel by kernel.",
}


def main(name: str, arguments: Sequence[str]) -> int:
    """The exit code. That of an error is never 1, which is a verdict: something is worse."""
    try:
        with missing_libraries_named():
            with importing():
                module = importlib.import_module(f"{__name__}.{SHARED.get(name, name.replace('-', '_'))}")
            return int(getattr(module, name if name in SHARED else "main")(arguments))
    except KeyboardInterrupt:
        say(f"flashinfer-perf {name}: interrupted")
        return INTERRUPTED
    except (FlashinferPerfError, OSError) as error:
        say(f"flashinfer-perf {name}: {error}")
        return error.exit_code if isinstance(error, FlashinferPerfError) else FlashinferPerfError.exit_code
    except Exception:  # noqa: BLE001 - any other is a fault of this package
        say(traceback.format_exc())
        return FlashinferPerfError.exit_code


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Fits into the terminal's width; lines of descriptions and examples stay lines, or go on in the next one."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002 - argparse's
        return "\n".join(
            _example(line, width) if EXAMPLE.match(line) else _filled(line, width) for line in text.splitlines()
        )

    def _format_usage(self, usage: str | None, *rest: Any) -> str:
        said = super()._format_usage(usage, *rest)
        return said if usage is None else f"{_filled(said.strip(), self._width, indent='  ')}\n\n"


EXAMPLE, WORD = re.compile(r"  |example: "), re.compile(r"""(?:'[^']*'|"[^"]*"|\S)+""")


def _filled(line: str, width: int, indent: str = "") -> str:
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _example(line: str, width: int) -> str:
    """A command, on several lines if it is long, as a shell takes it."""
    rows = [line[: len(line) - len(line.lstrip())]]
    if len(line) <= width:
        return line
    for word in WORD.findall(line):
        if len(rows[-1]) + len(word) + len(" \\") > width and rows[-1].strip():
            rows.append("    ")
        rows[-1] += f"{word} "
    return "\\\n".join(rows).rstrip()


def parser_of(command: str, description: str, example: str, usage: str = "") -> argparse.ArgumentParser:
    """The parser of a command, without its options."""
    return argparse.ArgumentParser(
        f"flashinfer-perf {command}",
        usage=f"flashinfer-perf {command} {usage}" if usage else None,
        description=description,
        epilog=example,
        formatter_class=HelpFormatter,
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json FILE` of commands with verdicts is another option: its name in the code is not taken."""
    parser.add_argument("--json", dest="as_json", action="store_true", help="Print the same facts as JSON.")


def show_json(facts: Any) -> None:
    """Print the facts as JSON; one that a CI system would take for a command, as ##[error], is escaped."""
    print_raw(as_json(facts, indent=2).replace("##", "#\\u0023") + "\n")


def write(output: Path | None, text: str) -> None:
    """Write to the file that is named, else to the terminal."""
    if output is None:
        print_raw(text)
    else:
        write_whole(output, text)
