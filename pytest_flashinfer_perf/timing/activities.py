"""Attach CUPTI for a few untimed calls, and record what each of them runs on the device.

To attach and detach it takes longer than such a call, so it is attached once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

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
