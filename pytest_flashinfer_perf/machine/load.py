"""What else the machine did while the host's clock timed calls, and whether it was too busy for these times.

By the host's clock a call lasts until it is done, whoever uses the cores meanwhile. So the counters of Linux are read
before and after the timed calls of each placement: how long threads of this process waited for a core, what other
processes and the hypervisor took of all cores, and how many tasks were ready to run. Elsewhere these are not known.
Times that come in steps of the scheduler's tick say it without any counter.
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

if sys.platform != "win32":
    import resource

TOO_BUSY = 0.25  # of all cores, or of the time of a thread: evidence/busy-cpu.md
SLICE_S = 3e-3  # the least that Linux lets another task run before it comes back to one that it stopped
SHORTEST_S = 0.1  # of all cores together, to count who used them: Linux counts in hundredths of a second
TICKS_S = (1e-3, 4e-3, 10e-3)  # of a kernel with 1000, 250 and 100 interrupts a second
FEWEST_LATE = 10  # calls: so many come in steps by chance in one of 200 rows that scatter widely
LATE_SHARE, IN_STEP = 0.25, 0.8  # of the calls; of the late ones
NEAR = 0.15  # of a tick
LOAD_UNKNOWN = "not known how busy the machine was: this system does not count what a process waits for a core"


@dataclass(frozen=True, kw_only=True)
class Contention:
    """What timed calls shared the machine with. Shares are of the time, null where the system does not tell."""

    seconds: float
    cores: int
    waited: float | None = None
    taken: float | None = None
    stolen: float | None = None
    stalled: float | None = None
    preempted: int | None = None
    load: float | None = None
    in_steps: bool = False

    @property
    def share(self) -> float:
        """The larger of what a thread waited and what others took; 0 if neither is known."""
        return max(self._waited, self.taken or 0.0)

    @property
    def _waited(self) -> float:
        """Where Linux does not say it of this process: as all tasks together, or as the least that it can have been."""
        if self.waited is not None:
            return self.waited
        if self.stalled is not None:
            return self.stalled
        return min(1.0, (self.preempted or 0) * SLICE_S / self.seconds)

    @property
    def unknown(self) -> str:
        """What a row says where this system counts nothing of it; empty where it does."""
        counts = (self.waited, self.taken, self.stalled, self.preempted)
        return LOAD_UNKNOWN if all(one is None for one in counts) else ""

    @property
    def is_busy(self) -> bool:
        return self.in_steps or self.share > TOO_BUSY

    @property
    def sentence(self) -> str:
        """What a reader can do something about: the other tasks, or the waiting if none of them was seen."""
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        if self.load is not None and self.load >= 1:
            return f"this machine was busy: load {self.load:.0f} on {cores}"
        if self.share > TOO_BUSY:
            return f"this machine was busy: {100 * self.share:.0f} % of the time of {cores} was not this process's"
        return "this machine was busy: the times come in steps of its scheduler's tick"


# What Linux counts, at one moment.

TASKS = Path("/proc/self/task")
STATISTICS = Path("/proc/stat")
PRESSURES = (Path("/sys/fs/cgroup/cpu.pressure"), Path("/proc/pressure/cpu"))  # of this container, of the machine
USED = slice(0, 8)  # user, nice, system, idle, iowait, irq, softirq, steal
IDLE = slice(3, 5)
STEAL = 7
READY = "procs_running"


@dataclass(frozen=True)
class Reading:
    """Seconds since the start of each thread, of this process and of the cores that it may use.

    `others` are the ready tasks of other processes, where it may use all cores: Linux does not say it of some.
    """

    at: float
    used_by_process: float
    cores: int
    preempted: int | None = None
    waited: Mapping[str, float] = field(default_factory=dict)
    used: float | None = None
    stolen: float | None = None
    stalled: float | None = None
    others: int | None = None


def read() -> Reading:
    """The counters now; off Linux only the clocks."""
    if sys.platform != "linux":
        return Reading(time.perf_counter(), time.process_time(), os.cpu_count() or 1)
    allowed = os.sched_getaffinity(0)
    used, stolen, others = _of_cores(allowed)
    return Reading(
        at=time.perf_counter(),
        used_by_process=time.process_time(),
        cores=len(allowed),
        preempted=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        waited=_waited(),
        used=used,
        stolen=stolen,
        stalled=_stalled(),
        others=others if len(allowed) == os.cpu_count() else None,
    )


def _waited() -> dict[str, float]:
    """Of each thread by its number; a thread may end meanwhile."""
    texts = {task: _text(TASKS / task / "schedstat") for task in _tasks()}
    return {task: int(text.split()[1]) * 1e-9 for task, text in texts.items() if text}


def _of_cores(allowed: Collection[int]) -> tuple[float | None, float | None, int | None]:
    """Seconds of these cores that were used and that the hypervisor took, and the ready tasks of other processes."""
    lines = {name: rest.split() for name, _, rest in (line.partition(" ") for line in _text(STATISTICS).splitlines())}
    names = [f"cpu{core}" for core in allowed]
    if not lines.keys() >= {*names, READY}:
        return None, None, None
    of_cores = [[int(number) / os.sysconf("SC_CLK_TCK") for number in lines[name]] for name in names]
    used = sum(sum(seconds[USED]) - sum(seconds[IDLE]) for seconds in of_cores)
    return used, sum(seconds[STEAL] for seconds in of_cores), max(0, int(lines[READY][0]) - _own_ready())


def _own_ready() -> int:
    states = (_text(TASKS / task / "stat").rpartition(") ")[2] for task in _tasks())
    return sum(state.startswith("R") for state in states)


def _stalled() -> float | None:
    texts = filter(None, map(_text, PRESSURES))
    return next((int(text.splitlines()[0].rpartition("total=")[2]) * 1e-6 for text in texts), None)


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


def during(watches: Sequence[LoadWatch], samples: Sequence[float] = ()) -> Contention | None:
    """What was seen around these samples; None where nobody watched, as an instrument of the GPU does not."""
    spans = [span for watch in watches for span in watch.spans]
    seconds = sum(after.at - before.at for before, after in spans)
    if not spans or seconds <= 0:
        return None
    cores = max(one.cores for span in spans for one in span)
    preempted = _sum((one.preempted, other.preempted) for one, other in spans)
    ready = [one.others for span in spans for one in span if one.others is not None]
    load = statistics.fmean(ready) if ready else None
    return Contention(
        seconds=seconds,
        cores=cores,
        waited=_longest_wait(spans, seconds),
        taken=_taken(spans[0][0], spans[-1][1], cores, load),
        stolen=_share(_sum((one.stolen, other.stolen) for one, other in spans), cores * seconds),
        stalled=_share(_sum((one.stalled, other.stalled) for one, other in spans), seconds),
        preempted=None if preempted is None else round(preempted),
        load=load,
        in_steps=in_steps(samples),
    )


def _longest_wait(spans: Sequence[tuple[Reading, Reading]], seconds: float) -> float | None:
    """Of the thread that waited longest: a call is done when all of its threads are."""
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


def _sum(pairs: Iterator[tuple[float | None, float | None]]) -> float | None:
    total = 0.0
    for before, after in pairs:
        if before is None or after is None:
            return None
        total += after - before
    return total


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None else min(1.0, max(0.0, part / whole))


def in_steps(samples: Sequence[float]) -> bool:
    """Whether many calls are late, and nearly all of these by whole ticks of the scheduler."""
    if not samples:
        return False
    fastest = min(samples)
    return any(_come_in([one - fastest for one in samples], tick) for tick in TICKS_S)


def _come_in(lateness: Sequence[float], tick: float) -> bool:
    late = [one / tick for one in lateness if one > tick / 2]
    near = [one for one in late if abs(one - round(one)) < NEAR]
    return len(late) >= max(FEWEST_LATE, LATE_SHARE * len(lateness)) and len(near) >= IN_STEP * len(late)
