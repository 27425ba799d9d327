"""The commands of `flashinfer-perf` other than bench, each imported when it is called."""

from __future__ import annotations

import argparse
import functools
import shutil
import signal
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf import loading
from pytest_flashinfer_perf.errors import FlashinferPerfError, missing_libraries_named
from pytest_flashinfer_perf.files import write_whole
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
    """The hooks of all extensions, which a command calls without a session of pytest."""
    return loading.manager().hook


@functools.cache
def all_commands() -> Mapping[str, Command]:
    """All commands by name: those of this package, then those of its extensions."""
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
    """Leaves examples as they are, and keeps names of options whole, as pytest does."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Wrap help without a break in a word or at its hyphens."""
        return textwrap.wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)


def filled(text: str, behind: str = "") -> str:
    """The text in lines of the terminal's width, as it stands `behind` something; examples stay as they are."""
    width, indent = shutil.get_terminal_size().columns - 2 - len(behind), "  " * bool(behind)
    return textwrap.fill(" ".join(text.split()), width, subsequent_indent=indent, break_on_hyphens=False)


def parser_of(command: str, description: str, example: str, usage: str = "") -> argparse.ArgumentParser:
    """The parser of a command, without its options."""
    return argparse.ArgumentParser(
        f"flashinfer-perf {command}",
        usage=filled(f"flashinfer-perf {command} {usage}", "usage: ") if usage else None,
        description=filled(description),
        epilog=example,
        formatter_class=HelpFormatter,
    )


def write(output: Path | None, text: str) -> None:
    """Write to the file that is named, else to the terminal."""
    if output is None:
        print_raw(text)
    else:
        write_whole(output, text)
