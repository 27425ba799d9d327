"""Start a process that measures, on a GPU that is locked for it, and read what it has measured.

Whoever runs pytest in a child does it by `ran`: the commands with pairs of processes (`Pairs`), `model`, and a
session that measures suspects again. The child's output goes to a log, its results come by pytest-benchmark's JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Generic, TypeVar

from pytest_flashinfer_perf.gate import markdown, read
from pytest_flashinfer_perf.gate.match import Reason
from pytest_flashinfer_perf.machine import another_process, requirements
from pytest_flashinfer_perf.machine.another_process import NoAnswerError
from pytest_flashinfer_perf.machine.requirements import Unmet
from pytest_flashinfer_perf.printing import say
from pytest_flashinfer_perf.rows.formatting import counted, last_lines
from pytest_flashinfer_perf.rows.run_file import Run, RunError
from pytest_flashinfer_perf.session import case_endings, gpu_lock
from pytest_flashinfer_perf.session.progress import TERMINAL

PROBE = "import sys; from pytest_flashinfer_perf.machine import devices; print(devices.find(sys.argv[1]).uuid or '')"
MODULE = ("-m", "pytest")
PASSED, TESTS_FAILED = 0, 1
LINES_OF_LOG = 30


@dataclass(frozen=True)
class Environment:
    """A name, the command that starts pytest in this environment, and its folder and variables if not those here.

    A process that `shows` what it is doing has a descriptor of this terminal.
    """

    name: str
    command: tuple[str, ...]
    folder: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    shows: bool = False

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


def environment(name: str, value: str) -> Environment:
    """`value` is the folder of a virtual environment, a Python, or a command that takes pytest's arguments."""
    path = Path(value)
    try:
        words = [str(path / "bin" / "python")] if path.is_dir() else [value] if path.is_file() else shlex.split(value)
    except ValueError:  # of a quotation without an end
        words = []
    if not words or shutil.which(words[0]) is None:
        raise RunError(f"--{name}={value}: is not a virtual environment, a Python or a command")
    starts = MODULE if Path(words[-1]).name.startswith("python") else ()
    return Environment(name, (*words, *starts))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the command's own arguments from those behind `--`, which are pytest's."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def started(where: Environment, arguments: Sequence[str] = (), log: Path | None = None) -> int:
    """Run a command to its end, with its output in a file or here, and return its exit code."""
    environ = {**os.environ, **where.variables}
    environ.pop(markdown.SUMMARY, None)  # it is the command that summarizes, not each of its processes
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("w", encoding="utf-8"))
        terminal: tuple[int, ...] = ()
        if where.shows:
            terminal = (os.dup(2),)
            stack.callback(os.close, *terminal)
            environ[TERMINAL] = str(*terminal)
        words = [*where.command, *arguments]
        begun = stack.enter_context(_ended_by_sigterm())
        process = stack.enter_context(
            subprocess.Popen(words, stdout=output, stderr=output, cwd=where.folder, env=environ, pass_fds=terminal)  # noqa: S603
        )
        try:
            begun()
            return process.wait()
        except BaseException:
            process.kill()
            process.wait()  # it may hold the GPU, or write into a folder that is removed next
            raise


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


def logged(words: Sequence[str], log: Path, folder: Path | None = None) -> None:
    """Run a command with its output in a file; raises RunError with the end of the output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    code = started(Environment(words[0], tuple(words), folder), log=log)
    if code:
        raise RunError(f"{shlex.join(words)} ended with code {code}, all of it in {log}:\n{end(log, LINES_OF_LOG)}")


def took_too_long(log: Path) -> bool:
    """Whether the process of this log was ended by the time limit of its cases."""
    return case_endings.TIMED_OUT in log.read_text(encoding="utf-8", errors="replace")


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
    run = read.read([output])[0] if is_written else Run(source=str(output), when=datetime.now(timezone.utc))
    return Done([*where.command, *words], code, run, log)


def measured(
    where: Environment, arguments: Sequence[str], stem: Path, only: Sequence[str] | None = None, title: str = ""
) -> Done:
    """As `ran`; raises RunError for a process that did not measure. With a title, say what it took."""
    start, done = time.monotonic(), ran(where, arguments, stem, only)
    measures = done.code == PASSED and done.run.rows
    if not (measures or done.failed):
        ended = "measured nothing" if done.code == PASSED else f"exited with code {done.code}"
        raise RunError(f"{shlex.join(done.words)} {ended}, full log: {done.log}\n{end(done.log, LINES_OF_LOG)}")
    if title:
        say(f"{title}: {counted(len(done.run.rows), 'case')} in {time.monotonic() - start:.1f} s")
    return done


def asked(where: Environment, text: str, *arguments: str) -> Any:
    """What this Python program prints as JSON in the environment; None for a command in which no Python is named."""
    words = where.program(text)
    if words is None:
        return None
    environ = {**os.environ, **where.variables}
    done = subprocess.run(  # noqa: S603
        [*words, *arguments], capture_output=True, text=True, cwd=where.folder, env=environ, check=False
    )
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        ended = last_lines(done.stderr, 1) or f"it prints {done.stdout[:60]!r}"
        raise RunError(f"{where.name}: its Python does not answer: {ended}") from error


def unmet(where: Environment) -> list[Unmet]:
    """What the FlashInfer of this environment lacks; of a command that names no Python only its rows will say it."""
    found = asked(where, Path(requirements.__file__).read_text(encoding="utf-8"))
    return [Unmet(*one) for one in found or ()]


def verify_complete(where: Environment, allowed: frozenset[str]) -> None:
    """Raise if FlashInfer lacks something there, before anything is measured: it would run other kernels, or none."""
    lacking = "; ".join(one.sentence for one in unmet(where))
    if lacking and Reason.REQUIREMENTS not in allowed:
        cure = f"install it, or admit it with --perf-gate-allow={Reason.REQUIREMENTS}"
        raise RunError(f"{where.name}: FlashInfer is incomplete: {lacking}: {cure}")
    if lacking:
        say(f"{where.name}: FlashInfer is incomplete: {lacking}")


def gpu(arguments: Sequence[str]) -> str | None:
    """The UUID of the GPU that a run with these arguments would use. A child looks it up and gives it back."""
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known.add_argument("--perf-device", default="auto")
    spec = known.parse_known_args(list(arguments))[0].perf_device
    if spec == "cpu":  # without asking, which would import torch
        return None
    try:
        return another_process.answer(PROBE, spec) or None
    except NoAnswerError as error:
        raise RunError(f"no device to measure on: {error}") from error


def alone_on(uuid: str | None) -> AbstractContextManager[None]:
    """Lock the GPU, or the CPU without one, for the processes that are started meanwhile."""
    what = "GPU" if uuid else "CPU"
    return gpu_lock.alone_on(uuid or "cpu", lambda path: say(f"waiting for the {what}: another run holds {path}"))


def verify(run: Run, locked: str | None) -> None:
    """Raise if the run used another GPU than the locked one; plain benchmarks do not record theirs."""
    others = {row.identity.gpu_uuid for row in run.rows if row.is_ours} - {locked}
    if others:
        remedy = "choose the GPU with CUDA_VISIBLE_DEVICES around this command, and start it where torch sees the GPU"
        raise RunError(
            f"{run.source} was measured on {', '.join(map(str, others))}, {locked or 'the CPU'} is locked: {remedy}"
        )


def folder(requested: Path | None, command: str) -> Path:
    """The folder for results. It must be empty, because files of another comparison would be judged with these."""
    made = requested or Path(f"{command}-{time.strftime('%Y%m%d-%H%M%S')}")
    if made.exists() and any(made.iterdir()):
        raise RunError(f"--output={made}: the folder is not empty, name a new one")
    made.mkdir(parents=True, exist_ok=True)
    return made


# The two sides of a comparison in turns, each time in a new process.

Side = TypeVar("Side", bound=str)


@dataclass
class Pairs(Generic[Side]):
    """Every second pair begins with the second side, so that a drift over time favours neither.

    `measure` is given the side, the number of the pair, and the cases to measure, None for all.
    """

    sides: tuple[Side, Side]
    measure: Callable[[Side, int, frozenset[str] | None], Run]
    seconds: list[float] = field(default_factory=list)  # that each pair took

    def __call__(self, nth: int, cases: frozenset[str] | None = None) -> tuple[Run, Run]:
        """The n-th pair, in the order of the sides."""
        start = time.monotonic()
        first, second = self.sides
        order = (first, second) if nth % 2 == 0 else (second, first)
        found = {side: self.measure(side, nth, cases) for side in order}
        self.seconds.append(time.monotonic() - start)
        return found[first], found[second]
