"""Start a process that measures, and read what it has measured; ask a Python program one question.

Whoever runs pytest in a child does it by `ran`, as a session that measures suspects again. The child's output goes to a
log, its results come by pytest-benchmark's JSON.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.printing import say
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.formatting import last_lines
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.session.progress import EACH_S

MODULE = ("-m", "pytest")
PASSED, TESTS_FAILED = 0, 1
TIMED_OUT = "Timeout ("  # of faulthandler's first word
SUMMARY = "GITHUB_STEP_SUMMARY"  # a command writes it, not each of its processes


@dataclass(frozen=True)
class Environment:
    """A name, the command that starts pytest in this environment, and its folder and variables if not those here."""

    name: str
    command: tuple[str, ...]
    folder: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)

    def program(self, text: str) -> tuple[str, ...] | None:
        """The command that runs this Python program there; None if the command names no Python."""
        at = next((i for i in range(len(self.command)) if self.command[i : i + 2] == MODULE), None)
        return None if at is None else (*self.command[:at], "-c", text, *self.command[at + 2 :])


@dataclass(frozen=True)
class Done:
    """A process that has ended: its command, its exit code, what it measured, and its log."""

    words: Sequence[str]
    code: int
    run: Run
    log: Path

    @property
    def failed(self) -> bool:
        """Whether one of its tests failed."""
        return self.code == TESTS_FAILED


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the command's own arguments from those behind `--`, which are pytest's."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def started(where: Environment, arguments: Sequence[str] = (), log: Path | None = None) -> int:
    """Run a command to its end, with its output in a file or here, and return its exit code."""
    environ = {**os.environ, **where.variables}
    environ.pop(SUMMARY, None)
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("w", encoding="utf-8"))
        words = [*where.command, *arguments]
        begun = stack.enter_context(_ended_by_sigterm())
        process = stack.enter_context(
            subprocess.Popen(words, stdout=output, stderr=output, cwd=where.folder, env=environ)  # noqa: S603
        )
        try:
            begun()
            return _waited(process, log)
        except BaseException:
            process.kill()
            process.wait()  # it may hold the GPU, or write into a folder that is removed next
            raise


def _waited(process: subprocess.Popen[bytes], log: Path | None) -> int:
    """The exit code. Of a process that prints into a log its last line is said every half minute."""
    start = time.monotonic()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(EACH_S if log else None)
        last = end(log, 1) if log else ""
        say(f"  {time.monotonic() - start:.0f} s so far, what it prints is in {log}{f': {last}' if last else ''}")


@contextmanager
def _ended_by_sigterm() -> Iterator[Callable[[], None]]:
    """SIGTERM ends a child that is waited for as well: else it went on, on the GPU that the next run is to have.

    Call what is yielded when there is a child: a signal that comes before has waited for that.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone may handle signals
        yield lambda: None
        return
    signals: list[int] = []
    has_begun = False

    def end(number: int, _: object) -> None:
        signals.append(number)
        if has_begun:
            sys.exit(128 + number)

    def begun() -> None:
        nonlocal has_begun
        has_begun = True
        if signals:
            sys.exit(128 + signals[0])

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield begun
    finally:
        signal.signal(signal.SIGTERM, before)


def end(log: Path, lines: int) -> str:
    return last_lines(log.read_text(encoding="utf-8", errors="replace"), lines)


def ran(where: Environment, arguments: Sequence[str], stem: Path, only: Sequence[str] | None = None) -> Done:
    """Run pytest with these arguments, or only these tests; results and output go to `stem`.json and `stem`.log."""
    output, log, named = (stem.with_suffix(suffix) for suffix in (".json", ".log", ".only"))
    words = [*arguments, f"--benchmark-json={output}"]
    if only is not None:
        named.write_text("".join(f"{test}\n" for test in only), encoding="utf-8")
        words.append(f"--perf-only={named}")
    code = started(where, words, log)
    is_written = output.is_file() and output.stat().st_size  # pytest-benchmark writes no file for a run without rows
    run = run_file.read_all([output])[0] if is_written else Run(source=str(output), when=datetime.now(timezone.utc))
    return Done([*where.command, *words], code, run, log)


# The end of a process and of all that it has started.

END_SECONDS = 10.0


def end_group(process: subprocess.Popen[bytes]) -> int:
    """End all processes of the group that it leads, and return its exit status when none of them is left.

    Those that it has started are not this process's to wait for, and take their time: a driver cleans up for them.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    status = process.wait()
    until = time.monotonic() + END_SECONDS
    while _is_left(process.pid) and time.monotonic() < until:
        time.sleep(0.01)
    return status


def _is_left(group: int) -> bool:
    """Whether a process of this group has not ended. One that has, and that nobody has waited for, is still listed."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of_group, *_ = stat.read_bytes().rpartition(b")")[2].split()
            if int(of_group) == group and state not in (b"Z", b"X"):
                return True
    return False


def cause(status: int) -> str:
    return signal.Signals(-status).name if status < 0 else f"exit code {status}"


# A Python program in a process of its own, for what would settle or spoil something in this one.


class NoAnswerError(FlashinferPerfError):
    """The program failed; the sentence is the last line of its errors."""


def answer(program: str, *arguments: str, **variables: str) -> str:
    """What it prints, with these variables beside those of this process."""
    words, environment = [sys.executable, "-c", program, *arguments], {**os.environ, **variables}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise NoAnswerError((done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1])
    return done.stdout.strip()
