"""Print text that files, names or errors bring along.

Whatever it holds, it moves no cursor, forges no line of output, and gives no command to a CI system that reads the log.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from typing import Protocol, TextIO

# Control characters but the tab, separators of lines, marks that turn the direction of text, what is no character.
UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
# GitHub obeys `::command::` where a line begins, and `##[command]` anywhere, as Azure does `##vso[command]`.
COMMAND = re.compile(r"^(?=\s*::)|(?<=##)(?=\[|vso\[)")


class Terminal(Protocol):
    def ensure_newline(self) -> None: ...
    def write_line(self, line: str) -> None: ...


def safe(text: str) -> str:
    """The text as one line that is safe to print, with what cannot be printed as Python's escapes."""
    visible = UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return COMMAND.sub(r"\\", visible)


def safe_lines(text: str) -> str:
    """Make text of several lines safe to print."""
    return "\n".join(map(safe, text.split("\n")))


def show(lines: Iterable[str]) -> None:
    """Print to standard output."""
    print_raw("".join(f"{safe(line)}\n" for line in lines))


def say(text: str) -> None:
    """Print to standard error: standard output is for what was asked for."""
    _print(sys.stderr, f"{safe_lines(text)}\n")


def print_raw(text: str) -> None:
    """Print to standard output what is data in a format of its own, or made safe already."""
    _print(sys.stdout, text)


def write_lines(terminal: Terminal, lines: Iterable[str]) -> None:
    """Print to pytest's terminal."""
    for line in map(safe, lines):
        terminal.ensure_newline()
        terminal.write_line(line)


def _print(stream: TextIO | None, text: str) -> None:
    """A reader that has closed the pipe, as `head` does, changes neither what is written to files nor the exit code."""
    if stream is None:  # closed before Python started
        return
    try:
        stream.write(text.encode(stream.encoding or "utf-8", "backslashreplace").decode(stream.encoding or "utf-8"))
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
