"""Find the case and its frames in what Python's faulthandler writes when a process dies.

A process that dies of a signal cannot report more itself. Without workers this module reports it, run as a
program beside the session, which therefore starts with the standard library alone and says each line as it comes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import dropwhile

CASE = "case "
FATAL = "Fatal Python error: "
PYTEST = f"{os.sep}_pytest{os.sep}"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120 - starts in half the time
ROUTINES = f"{os.sep}routines{os.sep}"


def frames(lines: Iterable[str]) -> Iterator[str]:
    """The frames of one thread above pytest's own, without this package's: those of what is measured remain."""
    for line in lines:
        if PYTEST in line or not line.startswith("  "):
            return
        if PACKAGE not in line or ROUTINES in line:
            yield line


def main(remedy: str) -> None:
    """Report a death of the session as soon as faulthandler writes it; return when the session has ended."""
    case = ""
    for line in sys.stdin:
        if line.startswith(CASE):
            case = line.removeprefix(CASE).strip()
        elif line.startswith(FATAL):
            sys.stderr.write(f"\nflashinfer-perf: {line.removeprefix(FATAL).strip()} in {case}: {remedy}\n")
            sys.stderr.writelines(frames(dropwhile(lambda rest: not rest.startswith("  "), sys.stdin)))


if __name__ == "__main__":
    main(sys.argv[1])
