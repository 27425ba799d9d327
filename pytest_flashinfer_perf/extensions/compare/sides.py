"""The processes of two sides that commands measure in turns, on a device that is locked for them."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pytest_flashinfer_perf.api import (
    Run,
    formatting,
    match,
    printing,
    processes,
    requirements,
    run_file,
)
from pytest_flashinfer_perf.session import gpu_lock

PROBE = "import sys; from pytest_flashinfer_perf.machine import devices; print(devices.find(sys.argv[1]).uuid or '')"
LINES_OF_LOG = 30
RunError = run_file.RunError


def environment(name: str, value: str) -> processes.Environment:
    """`value` is the folder of a virtual environment, a Python, or a command that takes pytest's arguments."""
    path = Path(value)
    try:
        words = [str(path / "bin" / "python")] if path.is_dir() else [value] if path.is_file() else shlex.split(value)
    except ValueError:  # of a quotation without an end
        words = []
    if not words or shutil.which(words[0]) is None:
        raise RunError(f"--{name}={value}: is not a virtual environment, a Python or a command")
    starts = processes.MODULE if Path(words[-1]).name.startswith("python") else ()
    return processes.Environment(name, (*words, *starts))


def measured(
    where: processes.Environment,
    arguments: Sequence[str],
    stem: Path,
    only: Sequence[str] | None = None,
    title: str = "",
) -> processes.Done:
    """Run a process and read its rows; raises RunError if it did not measure. With a title, say what it took."""
    start, done = time.monotonic(), processes.ran(where, arguments, stem, only)
    measures = done.code == processes.PASSED and done.run.rows
    if not (measures or done.failed):
        ended = "measured nothing" if done.code == processes.PASSED else f"exited with code {done.code}"
        last_lines = processes.end(done.log, LINES_OF_LOG)
        raise RunError(f"{shlex.join(done.words)} {ended}, full log: {done.log}\n{last_lines}")
    if title:
        printing.say(f"{title}: {formatting.counted(len(done.run.rows), 'case')} in {time.monotonic() - start:.1f} s")
    return done


def logged(words: Sequence[str], log: Path, folder: Path | None = None) -> None:
    """Run a command with its output in a file; raises RunError with the end of the output."""
    log.parent.mkdir(parents=True, exist_ok=True)
    code = processes.started(processes.Environment(words[0], tuple(words), folder), log=log)
    if code:
        raise RunError(
            f"{shlex.join(words)} ended with code {code}, all of it in {log}:\n{processes.end(log, LINES_OF_LOG)}"
        )


def answer_of(where: processes.Environment, text: str, *arguments: str) -> Any:
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
        ended = formatting.last_lines(done.stderr, 1) or f"it prints {done.stdout[:60]!r}"
        raise RunError(f"{where.name}: its Python does not answer: {ended}") from error


def unmet(where: processes.Environment) -> list[requirements.Unmet]:
    """What the FlashInfer of this environment lacks; of a command that names no Python only its rows will say it."""
    answer = answer_of(where, Path(requirements.__file__).read_text(encoding="utf-8"))
    return [requirements.Unmet(*one) for one in answer or ()]


def verify_complete(where: processes.Environment, allowed: frozenset[str]) -> None:
    """Raise if FlashInfer lacks something there, before anything is measured: it would run other kernels, or none."""
    lacking = "; ".join(one.sentence for one in unmet(where))
    if lacking and match.Reason.REQUIREMENTS not in allowed:
        cure = f"install it, or admit it with --perf-gate-allow={match.Reason.REQUIREMENTS}"
        raise RunError(f"{where.name}: FlashInfer is incomplete: {lacking}: {cure}")
    if lacking:
        printing.say(f"{where.name}: FlashInfer is incomplete: {lacking}")


def gpu(arguments: Sequence[str]) -> str | None:
    """The UUID of the GPU that a run with these arguments would use. A child looks it up and gives it back."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--perf-device", default="auto")
    spec = parser.parse_known_args(list(arguments))[0].perf_device
    if spec == "cpu":  # without asking, which would import torch
        return None
    try:
        return processes.answer(PROBE, spec) or None
    except processes.NoAnswerError as error:
        raise RunError(f"no device to measure on: {error}") from error


def alone_on(uuid: str | None) -> AbstractContextManager[None]:
    """Lock the GPU, or the CPU without one, for the processes that are started meanwhile."""
    what = "GPU" if uuid else "CPU"
    return gpu_lock.alone_on(
        uuid or "cpu", lambda path: printing.say(f"waiting for the {what}: another run holds {path}")
    )


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
    path = requested or Path(f"{command}-{time.strftime('%Y%m%d-%H%M%S')}")
    if path.exists() and any(path.iterdir()):
        raise RunError(f"--output={path}: the folder is not empty, name a new one")
    path.mkdir(parents=True, exist_ok=True)
    return path


# The two sides in turns, each time in a new process.

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
        runs = {side: self.measure(side, nth, cases) for side in order}
        self.seconds.append(time.monotonic() - start)
        return runs[first], runs[second]
