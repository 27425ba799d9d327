"""Start measuring processes one after the other, on a GPU that is locked for them."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pytest_flashinfer_perf.gate import github, runs
from pytest_flashinfer_perf.printing import say
from pytest_flashinfer_perf.running import alone, probe
from pytest_flashinfer_perf.running.probe import ProbeError
from pytest_flashinfer_perf.runs.formatting import last_lines
from pytest_flashinfer_perf.runs.run_file import Run, RunError

PROBE = "import sys; from pytest_flashinfer_perf.machine import devices; print(devices.find(sys.argv[1]).uuid or '')"
PASSED, TESTS_FAILED = 0, 1
LINES_OF_LOG = 30


@dataclass(frozen=True)
class Environment:
    """A name, and the command that starts pytest in this environment."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """The results of a finished process, and whether one of its tests failed."""

    run: Run
    failed: bool
    log: Path


def environment(name: str, value: str) -> Environment:
    """`value` is the folder of a virtual environment, a Python, or a command that takes pytest's arguments."""
    path = Path(value)
    words = [str(path / "bin" / "python")] if path.is_dir() else [value] if path.is_file() else shlex.split(value)
    if not words or shutil.which(words[0]) is None:
        raise RunError(f"--{name}={value}: is not a virtual environment, a Python or a command")
    starts = ("-m", "pytest") if Path(words[-1]).name.startswith("python") else ()
    return Environment(name, (*words, *starts))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the command's own arguments from those behind `--`, which are pytest's."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def measured(where: Environment, arguments: Sequence[str], stem: Path, only: Sequence[str] | None = None) -> Done:
    """Run pytest with these arguments, or only these tests; results and output go to `stem`.json and `stem`.log."""
    output, log, named = (stem.with_suffix(suffix) for suffix in (".json", ".log", ".only"))
    words = [*where.command, *arguments, f"--benchmark-json={output}"]
    if only is not None:
        named.write_text("".join(f"{test}\n" for test in only), encoding="utf-8")
        words.append(f"--perf-only={named}")
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, check=False, env=_alone()).returncode  # noqa: S603
    if code not in (PASSED, TESTS_FAILED):
        raise RunError(f"{shlex.join(words)} exited with code {code}, full log: {log}\n{_end(log)}")
    is_written = output.is_file() and output.stat().st_size  # pytest-benchmark writes no file for a run without rows
    run = runs.read([output])[0] if is_written else Run(source=str(output), when=datetime.now(timezone.utc))
    if code == PASSED and not run.rows:
        raise RunError(f"{shlex.join(words)} measured nothing, full log: {log}\n{_end(log)}")
    return Done(run, failed=code == TESTS_FAILED, log=log)


def _alone() -> dict[str, str]:
    """It is the command that summarizes, not each of its processes."""
    return {name: value for name, value in os.environ.items() if name != github.SUMMARY}


def _end(log: Path) -> str:
    return last_lines(log.read_text(encoding="utf-8", errors="replace"), LINES_OF_LOG)


def gpu(arguments: Sequence[str]) -> str | None:
    """The UUID of the GPU that a run with these arguments would use. A child looks it up and gives it back."""
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known.add_argument("--perf-device", default="auto")
    spec = known.parse_known_args(list(arguments))[0].perf_device
    if spec == "cpu":  # without asking, which would import torch
        return None
    try:
        return probe.answer(PROBE, spec) or None
    except ProbeError as error:
        raise RunError(f"no device to measure on: {error}") from error


def alone_on(uuid: str | None) -> AbstractContextManager[None]:
    """Lock the GPU, or the CPU without one, for the processes that are started meanwhile."""
    what = "GPU" if uuid else "CPU"
    return alone.alone_on(uuid or "cpu", lambda path: say(f"waiting for the {what}: another run holds {path}"))


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
