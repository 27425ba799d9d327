"""What else the machine did while the host's clock timed calls, and whether it was too loaded for these times.

By the host's clock a call lasts until it is done, whoever uses the cores meanwhile. So the counters of Linux are read
before and after the timed calls of each placement: how long threads of this process waited for a core, what others took
of all cores, and how many tasks were ready to run. Elsewhere these are not known.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

TOO_LOADED = 0.25  # of all cores, or of the time of a thread: evidence/busy-cpu.md
SHORTEST_S = 0.1  # of all cores together, to count who used them: Linux counts in hundredths of a second
LOAD_UNKNOWN = "not known how loaded the machine was: this system does not count what a process waits for a core"


@dataclass(frozen=True, kw_only=True)
class Contention:
    """What timed calls shared the machine with. Shares are of the time, null where the system does not tell."""

    seconds: float
    cores: int
    waited: float | None = None
    taken: float | None = None
    load: float | None = None

    @property
    def share(self) -> float:
        """The larger of what a thread waited and what others took; 0 if neither is known."""
        return max(self.waited or 0.0, self.taken or 0.0)

    @property
    def unknown(self) -> str:
        """What a row says where this system counts nothing of it; empty where it does."""
        return LOAD_UNKNOWN if self.waited is None and self.taken is None else ""

    @property
    def is_loaded(self) -> bool:
        return self.share > TOO_LOADED

    @property
    def sentence(self) -> str:
        """What a reader can do something about: the other tasks, or the waiting if none of them was seen."""
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        if self.load is not None and self.load >= 1:
            return f"others used this machine: load {self.load:.0f} on {cores}"
        return f"others used this machine: {100 * self.share:.0f} % of the time of {cores} was not this process's"


# What Linux counts, at one moment.

TASKS = Path("/proc/self/task")
STATISTICS = Path("/proc/stat")
USED = slice(0, 8)  # user, nice, system, idle, iowait, irq, softirq, steal
IDLE = slice(3, 5)
READY = "procs_running"


@dataclass(frozen=True)
class Reading:
    """Seconds since the start of each thread, of this process and of the cores that it may use.

    `others` are the ready tasks of other processes, where it may use all cores: Linux does not say it of some.
    """

    at: float
    used_by_process: float
    cores: int
    waited: Mapping[str, float] = field(default_factory=dict)
    used: float | None = None
    others: int | None = None


def read() -> Reading:
    """The counters now; off Linux only the clocks."""
    if sys.platform != "linux":
        return Reading(time.perf_counter(), time.process_time(), os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0)
    used, others = _of_cores(allowed)
    return Reading(
        at=time.perf_counter(),
        used_by_process=time.process_time(),
        cores=len(allowed),
        waited=_waited(),
        used=used,
        others=others if len(allowed) == os.cpu_count() else None,
    )


def _waited() -> dict[str, float]:
    """The seconds that each thread waited, by its number; a thread may end meanwhile."""
    texts = {task: _text(TASKS / task / "schedstat") for task in _tasks()}
    return {task: int(text.split()[1]) * 1e-9 for task, text in texts.items() if text}


def _of_cores(allowed: Collection[int]) -> tuple[float | None, int | None]:
    """Seconds of these cores that were used, and the ready tasks of other processes."""
    lines = {name: rest.split() for name, _, rest in (line.partition(" ") for line in _text(STATISTICS).splitlines())}
    names = [f"cpu{core}" for core in allowed]
    if not lines.keys() >= {*names, READY}:
        return None, None
    of_cores = [[int(number) / os.sysconf("SC_CLK_TCK") for number in lines[name]] for name in names]
    used = sum(sum(seconds[USED]) - sum(seconds[IDLE]) for seconds in of_cores)
    return used, max(0, int(lines[READY][0]) - _own_ready())


def _own_ready() -> int:
    states = (_text(TASKS / task / "stat").rpartition(") ")[2] for task in _tasks())
    return sum(state.startswith("R") for state in states)


def _tasks() -> list[str]:
    return [task.name for task in TASKS.iterdir()] if TASKS.is_dir() else []


def _text(path: Path) -> str:
    """Empty where it is not there, or not to be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


# From readings to what a row holds.


@dataclass
class LoadWatch:
    """Reads the counters around timed calls."""

    spans: list[tuple[Reading, Reading]] = field(default_factory=list)

    @contextmanager
    def watched(self) -> Iterator[None]:
        before = read()
        yield
        self.spans.append((before, read()))


def during(watches: Sequence[LoadWatch]) -> Contention | None:
    """What was seen around timed calls; None where nobody watched, as an instrument of the GPU does not."""
    spans = [span for watch in watches for span in watch.spans]
    seconds = sum(after.at - before.at for before, after in spans)
    if not spans or seconds <= 0:
        return None
    cores = max(one.cores for span in spans for one in span)
    ready = [one.others for span in spans for one in span if one.others is not None]
    load = statistics.fmean(ready) if ready else None
    return Contention(
        seconds=seconds,
        cores=cores,
        waited=_longest_wait(spans, seconds),
        taken=_taken(spans[0][0], spans[-1][1], cores, load),
        load=load,
    )


def _longest_wait(spans: Sequence[tuple[Reading, Reading]], seconds: float) -> float | None:
    """The wait of the thread that waited longest: a call is done when all of its threads are."""
    if not all(after.waited for _, after in spans):
        return None
    waits: dict[str, float] = {}
    for before, after in spans:
        for task, waited in after.waited.items():
            waits[task] = waits.get(task, 0.0) + waited - before.waited.get(task, 0.0)
    return _share(max(waits.values()), seconds)


def _taken(first: Reading, last: Reading, cores: int, load: float | None) -> float | None:
    """From the first to the last timed call. Where that is too short for what Linux counts, what was ready to run."""
    if first.used is None or last.used is None:
        return None
    all_cores_s = cores * (last.at - first.at)
    if all_cores_s < SHORTEST_S:
        return _share(load, cores)
    return _share(last.used - first.used - (last.used_by_process - first.used_by_process), all_cores_s)


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None else min(1.0, max(0.0, part / whole))
