"""How a case can end without a row: names of outcomes, and a sentence for each."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest_flashinfer_perf
from pytest_flashinfer_perf.api import processes

TIMEOUT = "timeout"
KILLED = "killed"
EXITED = "exited"

SOON_GONE = 2.0  # from its last byte to its end
FATAL = {"Segmentation fault": "segfault", "Aborted": "abort"}
PYTEST = f"{os.sep}_pytest{os.sep}"
PACKAGE = f"{Path(pytest_flashinfer_perf.__file__).parent}{os.sep}"
ROUTINES = f"{os.sep}routines{os.sep}"


class Death(NamedTuple):
    """The death of a process: its cause, an explanation, and what it wrote last."""

    outcome: str
    sentence: str
    words: str


def exit_code(process: int) -> int | None:
    """Get a child's exit code once it has ended, negative for a signal; whoever started it can still wait for it."""
    end = time.monotonic() + SOON_GONE
    while time.monotonic() < end:
        try:
            status = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        if status is not None:
            return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        time.sleep(SOON_GONE / 100)
    return None


def of_death(words: str, limit: float, code: int | None) -> Death:
    """Describe a death by what faulthandler wrote while the process died, or else by the exit code."""
    # The thread that ran the case: the one that died, or the last.
    threads = re.split(r"^(?:Current thread|Thread) .*\n", words, flags=re.MULTILINE)
    current = re.search(r"^Current thread .*\n((?:  .*\n)*)", words, flags=re.MULTILINE)
    where = "\n".join(_frames((current[1] if current else threads[-1]).splitlines()))
    if processes.TIMED_OUT in words:
        return Death(TIMEOUT, f"no end within {limit:g} s (--perf-timeout), its process was ended", where)
    fatal = re.search(r"Fatal Python error: (.*)", words)
    if fatal:
        cause = fatal[1].strip()
        return Death(FATAL.get(cause, cause.lower().replace(" ", "-")), f"its process died: {cause}", where)
    return Death(*_of_code(code), "")


def _frames(lines: Iterable[str]) -> Iterator[str]:
    """The frames of one thread above pytest's own, without this package's: those of what is measured remain."""
    for line in lines:
        if PYTEST in line or not line.startswith("  "):
            return
        if PACKAGE not in line or ROUTINES in line:
            yield line


def _of_code(code: int | None) -> tuple[str, str]:
    if code is None:
        return KILLED, "its process ended without a word"
    if code >= 0:
        return EXITED, f"its process exited with code {code}: something that the case calls ends it, as os._exit does"
    if code == -signal.SIGKILL:
        return KILLED, "its process was ended by SIGKILL, as a machine does that is out of memory"
    names = {int(one): one.name for one in signal.Signals}
    return KILLED, f"its process was ended by {names.get(-code, f'signal {-code}')}"
