"""Run one test in n processes, and learn how each of them ended.

Each rank is a session of pytest with this one test, so that fixtures, parameters and options are what they are without
ranks. A rank that fails or dies ends the group: the others wait for it in a collective, and would do so for ever.
Whatever happens, no process of the group is left when `run` returns; ranks end by themselves when this process dies.
All are started or none is asked to run: a CPU has as many ranks as it has cores and memory for, and two on one core.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_flashinfer_perf.api import Device, processes, reports, stash
from pytest_flashinfer_perf.extensions.many import case_endings
from pytest_flashinfer_perf.extensions.ranks import rank_environment
from pytest_flashinfer_perf.plugin.options import of_all

BYTES_OF_A_RANK = 512 << 20  # with torch, its tests and gloo
START_SECONDS = 120.0  # to import torch and the tests; the limit of the case begins after it
GRACE_SECONDS = 5.0  # for the other ranks to end by themselves after one has failed
PLUGIN = "pytest_flashinfer_perf.extensions.ranks.rank"
ONLY = "only"  # the file that names the test
PROGRAM = "import sys; sys.path[:] = {path!r}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"


@dataclass(frozen=True)
class End:
    """How a rank ended: by itself with a report of its test, by itself without one, or by us because of another."""

    rank: int
    outcome: str
    sentence: str
    at: float
    ended: str | None = None  # a name of many/case_endings.py or machine/device_errors.py, where the process died
    report: pytest.TestReport | None = None
    printed: str = ""

    @property
    def carried(self) -> reports.CaseReport:
        return reports.of(self.report) if self.report is not None else reports.NOTHING


@dataclass
class _Member:
    """A rank's process, the file that it prints to, and how it ended, as soon as that is known."""

    rank: int
    process: subprocess.Popen[bytes]
    log: Path
    ended_at: float | None = None
    handle: int = field(init=False)

    def __post_init__(self) -> None:
        self.handle = os.pidfd_open(self.process.pid)

    def end(self) -> None:
        """End it and all that it has started, at once."""
        processes.end_group(self.process)
        os.close(self.handle)


def run(item: pytest.Item, number: int, options: Callable[[int], Iterable[str]], limit: float) -> list[End]:
    """Run the item in so many ranks, each with its `options`. The ends come in the order of ranks."""
    if reason := too_many(number, item.config.stash[stash.DEVICE]):
        return [End(0, "skipped", reason, time.monotonic())]
    with tempfile.TemporaryDirectory(prefix="flashinfer-perf-ranks-") as folder:
        Path(folder, ONLY).write_text(item.nodeid)
        members: list[_Member] = []
        try:
            members.extend(_started(item, number, rank, folder, options(rank)) for rank in range(number))
            _watch(members, Path(folder))
        finally:
            for member in members:
                member.end()
        return [_end(item.config, member, Path(folder), limit) for member in members]


def too_many(number: int, device: Device) -> str | None:
    """Why so many ranks cannot run here. On GPUs, of which each has its own, their number is the bound."""
    if device.is_gpu:
        return None
    cores, room = len(os.sched_getaffinity(0)), device.free_bytes() // BYTES_OF_A_RANK
    if number <= min(max(2, cores), room):
        return None
    return f"needs {number} processes, and this CPU has {cores} cores and free memory for {room}: ask for fewer"


def _started(item: pytest.Item, number: int, rank: int, folder: str, options: Iterable[str]) -> _Member:
    no_multicast = item.config.getoption("perf_no_multicast")
    log = Path(folder, f"{rank}.log")
    program = [sys.executable, "-c", PROGRAM.format(path=[one for one in sys.path if isinstance(one, str)])]
    own_options = [f"--perf-only={folder}/{ONLY}", "-p", PLUGIN]
    with log.open("wb") as words:
        process = subprocess.Popen(  # noqa: S603 - pytest, in this interpreter
            [*program, *_named(item), *own_options, *_as_here(item.config, folder), *options],
            cwd=item.config.invocation_params.dir,
            env=rank_environment.environment(number, rank, folder, no_multicast=no_multicast),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
    return _Member(rank, process, log)


def _named(item: pytest.Item) -> list[str]:
    """The test, where no option names its file. Outside of the rootdir it has its name by the arguments here alone."""
    config, here = item.config, item.config.invocation_params.dir
    if any(map(item.path.samefile, filter(Path.exists, (here / one for one in _files_of_options(config))))):
        return []
    is_below = (config.rootpath / item.nodeid.partition("::")[0]).exists()
    return [stash.as_typed(config, item.nodeid)] if is_below else [*config.args]


def _files_of_options(config: pytest.Config) -> Iterator[str]:
    for value in (config.getoption(one.dest) for one in of_all(config) if one.reads):
        yield from filter(None, value if isinstance(value, list) else [value])


def _as_here(config: pytest.Config, folder: str) -> list[str]:
    """pytest's own options that decide what a test is; those of the ini file that do not are left out.

    The cache is a rank's own. Without the plugin of the cache, a `cache_dir` of the ini file would be an unknown name.
    """
    option = config.option
    ini = ["-c", str(config.inipath)] if config.inipath else []
    plugins = [part for name in option.plugins or () if name != PLUGIN for part in ("-p", name)]
    overridden = [part for one in option.override_ini or () for part in ("-o", one)]
    warned = [part for one in option.pythonwarnings or () for part in ("-W", one)]
    confined = [f"--confcutdir={option.confcutdir}"] if option.confcutdir else []
    own_cache = [] if "no:cacheprovider" in plugins else ["-o", f"cache_dir={folder}"]
    quiet = ["-q", "--no-header", "--no-summary"]  # what a rank that died had printed is shown
    always = [*quiet, "-o", "addopts=", f"--import-mode={option.importmode}", f"--rootdir={config.rootpath}"]
    return [*ini, *plugins, *overridden, *warned, *confined, *own_cache, *always]


def _watch(members: Sequence[_Member], folder: Path) -> None:
    """Until all have ended, or some time after the first of them did not end well."""
    waiting = {member.handle: member for member in members}
    until = time.monotonic() + START_SECONDS
    failed = False
    while waiting and (time.monotonic() < until or (not failed and _have_begun(members, folder))):
        for handle in select.select(list(waiting), [], [], 0.1)[0]:
            member = waiting.pop(handle)
            member.ended_at = time.monotonic()
            if not failed and not _is_well(member.rank, folder):
                failed, until = True, time.monotonic() + GRACE_SECONDS


def _have_begun(members: Sequence[_Member], folder: Path) -> bool:
    return all((folder / f"{member.rank}.begun").exists() for member in members)


def _written(rank: int, folder: Path) -> dict[str, Any] | None:
    """The file that the rank wrote: pytest's report of its test, and when it ended."""
    try:
        written: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return written


def _is_well(rank: int, folder: Path) -> bool:
    written = _written(rank, folder)
    return written is not None and written["report"]["outcome"] == "passed"


def _end(config: pytest.Config, member: _Member, folder: Path, limit: float) -> End:
    written, printed = _written(member.rank, folder), member.log.read_text(encoding="utf-8", errors="replace")
    if written is not None:
        report = config.hook.pytest_report_from_serializable(config=config, data=written["report"])
        sentence = reports.reason(report).removeprefix("Failed: ")
        return End(member.rank, report.outcome, sentence, written["at"], report=report, printed=printed)
    if member.ended_at is None:
        begun = (folder / f"{member.rank}.begun").exists()
        sentence = "did not end after that, and was ended" if begun else f"had not begun after {START_SECONDS:g} s"
        return End(member.rank, "ended", sentence, time.monotonic(), printed=printed)
    death = case_endings.of_death(printed, limit, member.process.returncode)
    sentence = death.sentence + (f"\n{death.words}" if death.words else "")
    return End(member.rank, "died", sentence, member.ended_at, ended=death.outcome, printed=printed)
