"""The commands of `flashinfer-perf` other than bench, each imported when it is called."""

from __future__ import annotations

import argparse
import functools
import re
import signal
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.errors import FlashinferPerfError, missing_libraries_named
from pytest_flashinfer_perf.files import as_json, write_whole
from pytest_flashinfer_perf.machine.garbage import importing
from pytest_flashinfer_perf.printing import print_raw, say
from pytest_flashinfer_perf.settings.option import Command

INTERRUPTED = 128 + signal.SIGINT  # as a shell has it
OWN = (
    Command(
        "list",
        "List routines with their backends, tiers, models and flags.",
        "pytest_flashinfer_perf.cli.list_command:main",
    ),
    Command(
        "options",
        "Show pytest's options of this package, all or those with a word.",
        "pytest_flashinfer_perf.cli.options_command:main",
    ),
)


def hooks() -> Any:
    """Those of all extensions, which a command asks without a session of pytest."""
    return loading.manager().hook


@functools.cache
def all_commands() -> Mapping[str, Command]:
    """By their names: those of this package, then those of its extensions."""
    of_extensions = (one for of_one in reversed(hooks().pytest_perf_commands()) for one in of_one)
    return {command.name: command for command in (*OWN, *of_extensions)}


def main(name: str, arguments: Sequence[str]) -> int:
    """The exit code. That of an error is never 1, which is a verdict: something is worse."""
    try:
        with missing_libraries_named():
            with importing():
                command = all_commands()[name]
                command.load()
            return command(arguments)
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
    """Fits into the terminal's width; lines of examples stay lines, or go on in the next one."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:  # noqa: ARG002 - argparse's
        return "\n".join(
            _example(line, width) if EXAMPLE.match(line) else _filled(line, width) for line in text.splitlines()
        )

    def _format_usage(self, usage: str | None, *rest: Any) -> str:
        said = super()._format_usage(usage, *rest)
        return said if usage is None else f"{_filled(said.strip(), self._width, indent='  ')}\n\n"

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Keep names of options whole, as pytest does."""
        return _filled(" ".join(text.split()), width).splitlines()


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
        description=" ".join(description.split()),
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
