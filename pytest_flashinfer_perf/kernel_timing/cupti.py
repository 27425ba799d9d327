"""Attach CUPTI for a few untimed calls, and record what each of them runs on the device.

To attach and detach it takes longer than such a call, so it is attached once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from pytest_flashinfer_perf.machine import patches

BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Activity:
    """A kernel, copy or fill that ran on the device, in nanoseconds; `to_host` has the bytes of a copy to the host."""

    name: str
    start: int
    end: int
    correlation_id: int = 0
    to_host: int | None = None


@dataclass(frozen=True)
class Recorder:
    cupti: Any
    synchronize: Callable[[], None]
    _seen: list[Activity] = field(default_factory=list)

    def of(self, call: Callable[[], object]) -> list[Activity]:
        """What a call runs on the device, which has to be idle before it."""
        self._seen.clear()
        call()
        self.synchronize()
        self.cupti.activity_flush_all(0)
        return list(self._seen)

    def completed(self, records: Iterable[Any]) -> None:
        kinds = self.cupti.ActivityKind
        on_device = (kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        self._seen.extend(self._activity(record) for record in records if record.kind in on_device)

    def _activity(self, record: Any) -> Activity:
        kinds, to_host = self.cupti.ActivityKind, None
        if record.kind == kinds.MEMCPY and record.copy_kind == self.cupti.ActivityMemcpyKind.DTOH:
            to_host = record.bytes
        name = record.name if record.kind == kinds.CONCURRENT_KERNEL else kinds(record.kind).name
        return Activity(name, record.start, record.end, record.correlation_id, to_host)


@contextmanager
def attached(cupti: Any, synchronize: Callable[[], None]) -> Iterator[Recorder]:
    """Attach CUPTI with the activities that bench_gpu_time enables, so that both see the same."""
    kinds = cupti.ActivityKind
    enabled = (kinds.RUNTIME, kinds.DRIVER, kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
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


def read_together() -> AbstractContextManager[None]:
    """Give callbacks that are registered meanwhile records that are cheap to read."""
    return patches.cupti_records(copied)


def copied(records: Sequence[Any]) -> list[Any]:
    """The records in their order."""
    types = [type(record) for record in records]
    of_type = {one: iter(_of_one_type([r for r in records if type(r) is one])) for one in set(types)}
    return [next(of_type[one]) for one in types]


def _of_one_type(records: list[Any]) -> list[Any]:
    """Copies, or the records themselves where their memory is not what they say."""
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
