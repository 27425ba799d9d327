"""What calls run on the device, from CUPTI's records: of a few untimed calls, and of those that bench_gpu_time times.

To attach and detach CUPTI takes longer than an untimed call, so it is attached once for all of them.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_flashinfer_perf.machine import patches

BUFFER_BYTES = 1 << 18  # CUPTI asks for another where one is full


@dataclass(frozen=True)
class Activity:
    """A kernel, copy or fill that ran on the device, in nanoseconds."""

    name: str
    start: int
    end: int
    correlation_id: int = 0


@dataclass(frozen=True)
class Recorder:
    cupti: Any
    synchronize: Callable[[], None]
    _activities: list[Activity] = field(default_factory=list)

    def of(self, call: Callable[[], object]) -> list[Activity]:
        """The activities of one call on the device, which has to be idle before it."""
        self._activities.clear()
        call()
        self.synchronize()
        self.cupti.activity_flush_all(0)
        return list(self._activities)

    def completed(self, records: Iterable[Any]) -> None:
        self._activities.extend(activities(self.cupti, records))


def activities(cupti: Any, records: Iterable[Any]) -> Iterator[Activity]:
    """The activities on the device among CUPTI's records."""
    kinds, wanted = cupti.ActivityKind, (*on_device(cupti), *between_devices(cupti))
    for one in records:
        if one.kind in wanted:
            name = one.name if one.kind == kinds.CONCURRENT_KERNEL else kinds(one.kind).name
            yield Activity(name, one.start, one.end, one.correlation_id)


def on_device(cupti: Any) -> tuple[Any, ...]:
    kinds = cupti.ActivityKind
    return kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET


def between_devices(cupti: Any) -> tuple[Any, ...]:
    """Copies from one GPU's memory to another's, which bench_gpu_time does not enable."""
    return (cupti.ActivityKind.MEMCPY2,)


def on_host(cupti: Any) -> tuple[Any, ...]:
    """The calls of the host, launches among them."""
    return cupti.ActivityKind.RUNTIME, cupti.ActivityKind.DRIVER


def union(intervals: Iterable[tuple[int, int]]) -> int:
    """The length of what at least one of these intervals covers; each has a start and an end."""
    total, until = 0, 0
    for start, end in sorted(intervals):
        total += max(0, end - max(start, until))
        until = max(until, end)
    return total


@dataclass(frozen=True)
class Trace:
    kernels: tuple[str, ...]
    kernel_runs: tuple[int, ...]
    kernel_s: tuple[float, ...]
    launches: int
    busy_s: float
    span_s: float


def summarise(activities: Sequence[Activity]) -> Trace | None:
    """Summarise a trace; None without activities, since a call without launches and a lost record look the same."""
    if not activities:
        return None
    ordered = sorted(activities, key=lambda a: a.start)
    span = max(a.end for a in ordered) - ordered[0].start
    times: dict[str, list[int]] = {}
    for one in ordered:
        times.setdefault(one.name, []).append(one.end - one.start)
    runs, took = tuple(map(len, times.values())), tuple(sum(each) / 1e9 for each in times.values())
    busy = union((a.start, a.end) for a in ordered) / 1e9
    return Trace(tuple(times), runs, took, len(ordered), busy, span / 1e9)


@contextmanager
def attached(cupti: Any, synchronize: Callable[[], None]) -> Iterator[Recorder]:
    """Attach CUPTI with the activities that bench_gpu_time enables, so that both see the same."""
    enabled = (*on_host(cupti), *on_device(cupti))
    recorder = Recorder(cupti, synchronize)
    synchronize()
    try:
        for kind in enabled:
            cupti.activity_enable(kind)
        cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), recorder.completed)
        yield recorder
    finally:
        for kind in enabled:
            cupti.activity_disable(kind)
        cupti.finalize()


# Read the common fields of CUPTI's activity records in one pass. cupti-python 13.0, which is what pip installs beside
# a torch for CUDA 13.0, reads each field of each record through numpy. From 13.2 on records are structures of C,
# cheap to read, and are passed on as they are.

FIELDS = ("kind", "start", "end", "correlation_id", "cbid")


class Copied:
    """Fields as plain integers; any other attribute is that of CUPTI's own record."""

    def __init__(self, own: Any, fields: Mapping[str, int]) -> None:
        self.__dict__.update(fields, _own=own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


def read_together(read: Callable[[Sequence[Any]], None]) -> AbstractContextManager[None]:
    """Give callbacks that are registered meanwhile records that are cheap to read, and give them to `read` first."""

    def converted(records: Sequence[Any]) -> Sequence[Any]:
        cheap = copied(records)
        read(cheap)
        return cheap

    return patches.cupti_records(converted, BUFFER_BYTES)


def copied(records: Sequence[Any]) -> list[Any]:
    """Copy the records, in their order."""
    types = [type(record) for record in records]
    of_type = {one: iter(_of_one_type([r for r in records if type(r) is one])) for one in set(types)}
    return [next(of_type[one]) for one in types]


def _of_one_type(records: list[Any]) -> list[Any]:
    """Copy the records; return them as they are where their memory has another layout."""
    try:
        copies = _copies(records)
    except (AttributeError, BufferError, TypeError, ValueError):
        return records
    last = vars(copies[-1])
    return copies if all(last[name] == getattr(records[-1], name) for name in last.keys() & FIELDS) else records


def _copies(records: list[Any]) -> list[Any]:
    import numpy as np

    memory = [record._data for record in records]  # noqa: SLF001 - no public name has it
    layout = memory[0].dtype
    names = [name for name in FIELDS if name in layout.names]
    rows = np.frombuffer(b"".join(memory), layout)[names].tolist()
    return [Copied(record, dict(zip(names, row, strict=True))) for record, row in zip(records, rows, strict=True)]


# The busy time of calls that bench_gpu_time times. It returns spans alone, from the first start to the last end of what
# a call ran, and keeps its records to itself.


@dataclass
class TimedCalls:
    """When each call was made, and the records of CUPTI meanwhile."""

    cupti: Any
    _calls: list[tuple[int, int]] = field(default_factory=list)
    _launches: list[tuple[int, int]] = field(default_factory=list)  # when, and which
    _ran: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def with_time_noted(self, call: Callable[[], object]) -> Callable[[], None]:
        """Wrap the call so that its start and end are noted."""

        def call_and_note() -> None:
            start = self.cupti.get_timestamp()
            call()
            self._calls.append((start, self.cupti.get_timestamp()))

        return call_and_note

    def completed(self, records: Iterable[Any]) -> None:
        host, device = on_host(self.cupti), on_device(self.cupti)
        for record in records:
            if record.kind in host:
                self._launches.append((record.start, record.correlation_id))
            elif record.kind in device:
                self._ran.setdefault(record.correlation_id, []).append((record.start, record.end))

    def busy(self, spans: Sequence[float]) -> list[float] | None:
        """The seconds of each of the last calls in which something ran.

        None unless these records have the same spans: records may be lost, and spans may be those of other ranks.
        """
        own = launched_in(self._calls[-len(spans) :], self._launches)
        calls = [[interval for which in ids for interval in self._ran.get(which, ())] for ids in own]
        ran_spans = [max(end for _, end in ran) - min(start for start, _ in ran) for ran in calls if ran]
        return [union(ran) / 1e9 for ran in calls] if ran_spans == [round(span * 1e9) for span in spans] else None


def launched_in(calls: Iterable[tuple[int, int]], launches: Iterable[tuple[int, int]]) -> list[set[int]]:
    """The correlation ids of what the host launched while it made each call; a launch is when, and which."""
    ordered = sorted(launches)
    bounds = (
        (bisect.bisect_left(ordered, (start, 0)), bisect.bisect_left(ordered, (end + 1, 0))) for start, end in calls
    )
    return [{which for _, which in ordered[first:last]} for first, last in bounds]
