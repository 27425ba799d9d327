"""Modules compiled all at once: a ninja for each, where FlashInfer's own looks again, and one pool of jobs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.running.compiling import first_error

JOB = b"+"
STEP = re.compile(r"\[(\d+)/(\d+)\] ")
WITH_JOB_SERVER, REMEDY = (1, 13), "pip install 'ninja>=1.13', and have it first on the path"
Told = Callable[[int, int], None]


class NinjaError(RuntimeError):
    """There is none, or one that is too old."""


def verify_ninja() -> None:
    """FlashInfer's own, which is the first on the path: another version would compile everything again."""
    found = shutil.which("ninja")
    if found is None:
        raise NinjaError(f"there is no ninja on the path: {REMEDY}")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    if tuple(map(int, re.findall(r"\d+", said)[:2])) < WITH_JOB_SERVER:
        raise NinjaError(f"{found} is {said}, which cannot share its jobs with others: {REMEDY}")


def built(specs: Iterable[Any], finished: Callable[[str, str | None], None], step: Told) -> None:
    """`finished` is told of each module's end, and of its error; `step` of files compiled and of how many there are."""
    from filelock import FileLock

    specs = sorted(specs, key=lambda spec: -len(spec.sources))
    with ExitStack() as stack, _jobs() as (take, environment):
        for spec in sorted(specs, key=lambda spec: str(spec.name)):
            stack.enter_context(FileLock(spec.lock_path, thread_local=False))
        steps = _Steps(step)

        def compiled(spec: Any) -> None:
            with take():
                error = _ninja(spec, environment, lambda done, of: steps.tell(spec.name, done, of))
            finished(spec.name, error)

        with ThreadPoolExecutor(max(1, len(specs))) as pool:
            list(pool.map(compiled, specs))


class _Steps:
    """Of all modules, out of what each says of its own."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._of: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def tell(self, module: str, done: int, of: int) -> None:
        with self._lock:
            self._of[module] = (done, of)
            done_of_all, all_of_all = map(sum, zip(*self._of.values(), strict=True))
            self._told(done_of_all, all_of_all)


def number_of_jobs() -> int:
    """FlashInfer's own variable for it, else a job for each processor."""
    said = os.environ.get("MAX_JOBS", "")
    return int(said) if said.isdecimal() and int(said) else len(os.sched_getaffinity(0))


@contextmanager
def _jobs() -> Iterator[tuple[Callable[[], Any], dict[str, str]]]:
    """GNU make's job server: whoever starts a compiler takes a token out of a pipe, and puts it back."""
    number = number_of_jobs()
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder, "jobs")
        os.mkfifo(pipe)
        end = os.open(pipe, os.O_RDWR)
        os.write(end, JOB * number)

        @contextmanager
        def take() -> Iterator[None]:
            """Each ninja has one without asking."""
            os.read(end, 1)
            try:
                yield
            finally:
                os.write(end, JOB)

        yield take, {**os.environ, "MAKEFLAGS": f" -j{number} --jobserver-auth=fifo:{pipe}"}
        os.close(end)


def _ninja(spec: Any, environment: dict[str, str], step: Told) -> str | None:
    """Its first error, as FlashInfer's own build would meet it."""
    try:
        spec.write_ninja()
    except Exception as error:  # noqa: BLE001 - one module's, as any error of a compiler
        return f"{type(error).__name__}: {error}"
    folder = str(spec.build_dir)
    words = ["ninja", "-v", "-C", folder, "-f", str(spec.ninja_path)]
    with subprocess.Popen(  # noqa: S603
        words, env=environment, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as running:
        lines = list(_watched(running.stdout or (), step))
    return first_error("".join(lines)) if running.returncode else None


def _watched(output: Iterable[str], step: Told) -> Iterator[str]:
    for line in output:
        told = STEP.match(line)
        if told:
            step(int(told[1]), int(told[2]))
        yield line
