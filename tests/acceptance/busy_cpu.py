"""What the gate says on a busy CPU, and of several processes on a quiet one: python tests/acceptance/busy_cpu.py FOLDER

README's program is measured on the quiet machine, as the baseline; then judged beside neighbours that loop, sleep and
fork: identical code, and +100 % planted. Then `--processes` quiet processes of four functions that compute in the cache
are judged five against five, identical code and +5 % planted in one case, measured in turns. What a busy machine
measured where it should be quiet is measured again, and counted. A session is a fork of this process, which has
imported torch: it takes a second, and confirms as any other one does.
"""

import argparse
import contextlib
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch  # noqa: F401 - imported before the forks

from pytest_flashinfer_perf.gate import calm, read
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.verdict import Judged, Rules
from pytest_flashinfer_perf.rows.run_file import Run

README = Path(__file__).parents[2] / "README.md"
PROGRAM = "test_my_kernel.py"
IN_CACHE = "test_in_cache.py"
FUNCTIONS = """
import pytest
import torch

@pytest.mark.parametrize("name", ["lgamma", "digamma", "erfinv", "tan"])
def test_function(perf, name):
    x = torch.rand(1 << 18, generator=torch.Generator().manual_seed(1))
    perf.time(getattr(torch, name), x, out=torch.empty_like(x))
"""
QUICK = ("-q", "-p", "no:cacheprovider", "--perf-device=cpu", "--benchmark-quiet")
SIDE, DRAWS = 5, 100
MORE, TWICE = 0.05, 1.0
PAUSE_S = 5.0


def loop() -> None:
    while True:
        pass


def doze() -> None:
    """Work and sleep for five milliseconds each."""
    while True:
        end = time.perf_counter() + 0.005
        while time.perf_counter() < end:
            pass
        time.sleep(0.005)


def fork() -> None:
    while True:
        subprocess.run(["/bin/true"], check=True)


KINDS: dict[str, Callable[[], None]] = {"looping": loop, "sleeping": doze, "forking": fork}


@contextlib.contextmanager
def neighbours(kind: str, count: int) -> Iterator[None]:
    pids = [_forked(KINDS[kind]) for _ in range(count)]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os._exit(int(work() or 0))  # type: ignore[call-overload]
    finally:
        os._exit(1)


def session(folder: Path, name: str, program: str, *options: str) -> tuple[int, Run]:
    """The exit code and the rows of a session, whose terminal is in NAME.log."""
    written = folder / f"{name}.json"

    def run() -> int:
        os.chdir(folder)
        log = os.open(f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        return int(pytest.main([program, *QUICK, f"--benchmark-json={written}", *options]))

    _, status = os.waitpid(_forked(run), 0)
    [made] = read.read([written])
    return os.waitstatus_to_exitcode(status), made


def is_calm(run: Run) -> bool:
    return not any(calm.is_busy(row) for row in run.rows)


def quiet(folder: Path, name: str, patience: float, program: str, *options: str) -> tuple[Run, int]:
    """A session of a machine that was not busy, and how many were; the last one when the patience is at its end."""
    end = time.monotonic() + patience
    for busy in range(1000):
        code, run = session(folder, name, program, *options)
        assert code == 0, folder / f"{name}.log"
        if is_calm(run) or time.monotonic() > end:
            return run, busy
        time.sleep(PAUSE_S)
    raise AssertionError("unreachable")


def plants(folder: Path, base: Run, share: float, only: int | None = None) -> str:
    """The option that makes each case, or only that one, longer by this share."""
    rows = [row for nth, row in enumerate(base.rows) if only in (None, nth)]
    path = folder / f"plants-{share:g}.json"
    path.write_text(json.dumps({row.fullname: share * row.median for row in rows}))
    return f"--perf-plant={path}"


def judged(base: Sequence[Run], head: Sequence[Run]) -> tuple[Judged, ...]:
    return judge(base, head, Rules()).cases


def loaded(folder: Path, base: Run, kind: str, load: int, runs: int) -> Iterator[str]:
    """A row of the table for identical code, and one for planted work."""
    for what, planted in (("identical", ()), ("+100 %", (plants(folder, base, TWICE),))):
        failed, seen = 0, Counter[str]()
        for nth in range(runs):
            name = f"{kind}-{load}-{what.strip('+ %')}-{nth}"
            code, head = session(folder, name, PROGRAM, f"--perf-gate={folder / 'baseline.json'}", *planted)
            failed += code == 1
            seen.update(f"{one.verdict.value} ({one.reason})" for one in judged([base], [head]))
        found = ", ".join(f"{count} {verdict}" for verdict, count in seen.most_common())
        yield f"| {kind} | {load} | {what} | {failed} of {runs} | {found} |"


def several(folder: Path, processes: int, patience: float) -> Iterator[str]:
    """Five against five quiet processes, drawn again and again from these."""
    first, _ = quiet(folder, "first", patience, IN_CACHE)
    made: dict[str, list[Run]] = {"plain": [], "planted": []}
    again = Counter[str]()
    for nth in range(processes):
        for what, planted in (("plain", ()), ("planted", (plants(folder, first, MORE, 0),))):
            run, busy = quiet(folder, f"{what}-{nth}", patience, IN_CACHE, *planted)
            made[what] += [run] * is_calm(run)
            again[what] += busy
    for what, runs in made.items():
        yield f"{what}: {len(runs)} of {processes} processes quiet, {again[what]} measured again"
        for name in first.by_case if len(runs) > 1 else ():
            logs = [math.log(run.by_case[name].median) for run in runs]
            yield f"{what}: {name}: {1e6 * math.exp(statistics.fmean(logs)):.1f} us, sd {statistics.stdev(logs):.2%}"
    rng, seen = random.Random(1), Counter[tuple[str, str]]()
    for _ in range(DRAWS if min(map(len, made.values())) >= 2 * SIDE else 0):
        drawn = rng.sample(made["plain"], 2 * SIDE)
        sides = {"identical": drawn[SIDE:], "+5 %": rng.sample(made["planted"], SIDE)}
        for what, head in sides.items():
            seen.update((what, f"{one.name}: {one.verdict.value}") for one in judged(drawn[:SIDE], head))
    yield from (
        f"five against five, {what}: {verdict} in {count} of {DRAWS}" for (what, verdict), count in seen.items()
    )


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--kinds", nargs="*", default=list(KINDS))
    asked.add_argument("--loads", nargs="*", type=int, default=[1, 2, 4, 8])
    asked.add_argument("--runs", type=int, default=20)
    asked.add_argument("--processes", type=int, default=40)
    asked.add_argument("--patience", type=float, default=600.0, help="seconds to wait for a quiet machine, each time")
    how = asked.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no neighbour outlives this process
    folder = how.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    [program] = re.findall(rf"```python\n(# {PROGRAM}\n.*?)```", README.read_text(), re.DOTALL)
    (folder / PROGRAM).write_text(program)
    (folder / IN_CACHE).write_text(FUNCTIONS)
    if (folder / "baseline.json").exists():  # of a run that was interrupted
        [base] = read.read([folder / "baseline.json"])
    else:
        base, _ = quiet(folder, "baseline", how.patience, PROGRAM)
    print(f"baseline of {base.when:%Y-%m-%d %H:%M} UTC: {'quiet' if is_calm(base) else 'NOT quiet'}", flush=True)
    print("| neighbours | load | code | exit 1 | verdicts of single runs |\n|---|---|---|---|---|", flush=True)
    for kind in how.kinds:
        for load in how.loads:
            with neighbours(kind, load):
                for line in loaded(folder, base, kind, load, how.runs):
                    print(line, flush=True)
    for line in several(folder, how.processes, how.patience) if how.processes else ():
        print(line, flush=True)


if __name__ == "__main__":
    main()
