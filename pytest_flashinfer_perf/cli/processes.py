"""Processes that measure, one after the other, on a GPU that no other of ours uses meanwhile."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pytest_flashinfer_perf.gate import runs
from pytest_flashinfer_perf.running import alone
from pytest_flashinfer_perf.runs.run_file import Run, RunError

PROBE = "import sys; from pytest_flashinfer_perf.machine import devices; print(devices.find(sys.argv[1]).uuid or '')"
PASSED, TESTS_FAILED = 0, 1
SHOWN_OF_A_LOG = 30


@dataclass(frozen=True)
class Environment:
    """How pytest is started in it."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Done:
    """What a process measured, and whether one of its tests failed."""

    run: Run
    failed: bool
    log: Path


def environment(name: str, said: str) -> Environment:
    """From the folder of a virtual environment, a Python, or a command that takes pytest's arguments."""
    path = Path(said)
    words = [str(path / "bin" / "python")] if path.is_dir() else [said] if path.is_file() else shlex.split(said)
    if not words or shutil.which(words[0]) is None:
        raise RunError(f"--{name}={said}: neither a virtual environment, nor a Python, nor a command")
    starts = ("-m", "pytest") if Path(words[-1]).name.startswith("python") else ()
    return Environment(name, (*words, *starts))


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command's own arguments, and pytest's behind `--`."""
    words = list(arguments)
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


def measured(where: Environment, arguments: Sequence[str], stem: Path, only: Sequence[str] | None = None) -> Done:
    """pytest's run with these arguments, as `stem`.json and `stem`.log; of these tests only, where they are named."""
    output, log, named = (stem.with_suffix(suffix) for suffix in (".json", ".log", ".only"))
    words = [*where.command, *arguments, f"--benchmark-json={output}"]
    if only is not None:
        named.write_text("".join(f"{test}\n" for test in only), encoding="utf-8")
        words.append(f"--perf-only={named}")
    with log.open("w", encoding="utf-8") as file:
        code = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, check=False).returncode  # noqa: S603
    if code not in (PASSED, TESTS_FAILED):
        raise RunError(f"{shlex.join(words)} ended with code {code}, all of it in {log}:\n{_end(log)}")
    is_written = output.is_file() and output.stat().st_size  # of plain benchmarks without a row there is no file
    run = runs.read([output])[0] if is_written else Run(source=str(output), when=datetime.now(timezone.utc))
    if code == PASSED and not run.rows:
        raise RunError(f"{shlex.join(words)} measured nothing, all of it in {log}:\n{_end(log)}")
    return Done(run, failed=code == TESTS_FAILED, log=log)


def _end(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_OF_A_LOG:])


def gpu(arguments: Sequence[str]) -> str | None:
    """The UUID of the GPU that a run with these arguments would take; asked in a process that gives it back."""
    known = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    known.add_argument("--perf-device", default="auto")
    spec = known.parse_known_args(list(arguments))[0].perf_device
    done = subprocess.run([sys.executable, "-c", PROBE, spec], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise RunError(f"no device to measure on: {done.stderr.strip().rpartition(chr(10))[2]}")
    return done.stdout.strip() or None


def alone_on(uuid: str | None) -> AbstractContextManager[None]:
    """A lock for the GPU, for the whole machine without one; what is started meanwhile measures under it."""
    return alone.alone_on(uuid or "cpu", lambda path: say(f"waiting for the GPU: another run holds {path}"))


def verify(run: Run, locked: str | None) -> None:
    """What it measured on must be what is locked; plain benchmarks do not say."""
    others = {row.identity.gpu_uuid for row in run.rows if row.is_ours} - {locked}
    if others:
        cure = "choose the GPU with CUDA_VISIBLE_DEVICES around this command, and start it where torch sees the GPU"
        raise RunError(f"{run.source} was measured on {others}, {locked or 'the CPU'} is locked: {cure}")


def say(sentence: str) -> None:
    """Beside the verdicts, which are standard output's."""
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def folder(said: Path | None, command: str) -> Path:
    """A new one: files of another comparison in it would be judged with these."""
    made = said or Path(f"{command}-{time.strftime('%Y%m%d-%H%M%S')}")
    if made.exists() and any(made.iterdir()):
        raise RunError(f"--output={made}: holds files already, name a new folder")
    made.mkdir(parents=True, exist_ok=True)
    return made
