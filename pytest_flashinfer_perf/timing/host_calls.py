"""Count what an eager call requests from the driver and from torch's allocator, by line of Python.

CUPTI calls back at every API call, whichever library makes it, while the line of Python that led there still stands on
the stack.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.runs.host_time import COPY_TO_HOST, SYNCHRONISATION, Line
from pytest_flashinfer_perf.timing import allocations, python_lines
from pytest_flashinfer_perf.timing.instruments import INSTRUMENTS, Call

BUFFER_BYTES = 1 << 20
ASYNCHRONOUS_COPY = re.compile("Async")
WAITS = re.compile(r"^cu(da)?(Device|Ctx|Stream|Event|Thread|Context)Synchronize|^cu(da)?Memcpy")


def counted(call: Call, device: Device) -> tuple[dict[str, Any], str]:
    """Fields of a HostTime, and the reason if some are missing."""
    allocated = _unless_it_fails("torch's allocator", lambda: allocations.of(call, device.torch))
    blind = INSTRUMENTS["cupti"].missing(device)
    calls = ({}, [], blind) if blind else _unless_it_fails("cupti", lambda: _driver_calls(call, device))
    why_not = "; ".join(reason for *_, reason in (allocated, calls) if reason)
    return {**allocated[0], **calls[0], "lines": (*allocated[1], *calls[1])}, why_not


Counts = tuple[dict[str, int], list[Line]]


def _unless_it_fails(instrument: str, count: Callable[[], Counts]) -> tuple[dict[str, int], list[Line], str]:
    """The counts, or the reason why there are none; a case does not fail for them."""
    try:
        return (*count(), "")
    except Exception as error:  # noqa: BLE001 - whatever stops it is the reason
        return {}, [], f"{instrument} counts nothing of the host: {type(error).__name__}: {error}"


def _driver_calls(call: Call, device: Device) -> Counts:
    from cupti import cupti

    seen = Driver(cupti, device.synchronize).calls_of(call)
    return seen.fields, seen.lines


@dataclass(frozen=True)
class DriverCalls:
    """`waited` and `copies` hold the line of Python of each, if there is one."""

    launches: int
    waited: Sequence[str | None]
    copies: Sequence[tuple[str | None, int]]

    @property
    def fields(self) -> dict[str, int]:
        return {
            "launches": self.launches,
            "synchronisations": len(self.waited),
            "copies_to_host": len(self.copies),
            "copied_bytes": sum(size for _, size in self.copies),
        }

    @property
    def lines(self) -> list[Line]:
        waits = [Line(SYNCHRONISATION, line, count) for line, count in Counter(self.waited).items()]
        return [*waits, *by_line(COPY_TO_HOST, self.copies)]


def by_line(what: str, made: Iterable[tuple[str | None, int]]) -> list[Line]:
    """One entry for each line of Python, with its number of calls and bytes."""
    sizes: dict[str | None, list[int]] = {}
    for line, size in made:
        sizes.setdefault(line, []).append(size)
    return [Line(what, line, len(of_line), sum(of_line)) for line, of_line in sizes.items()]


@dataclass
class Driver:
    """CUPTI's callbacks and activities of one call; a call of the runtime that ends in the driver is one call."""

    cupti: Any
    synchronize: Callable[[], None]
    _counting: bool = False
    _depth: Counter[int] = field(default_factory=Counter)
    _lines: dict[int, str | None] = field(default_factory=dict)
    _waited: list[str | None] = field(default_factory=list)
    _activities: list[tuple[int, int, bool]] = field(default_factory=list)  # correlation id, bytes, whether to host

    def calls_of(self, call: Call) -> DriverCalls:
        self.synchronize()
        with self._attached():
            self._counting = True
            try:
                call()
            finally:
                self._counting = False
            self.synchronize()
            self.cupti.activity_flush_all(0)
        copies = [(self._lines.get(key), size) for key, size, to_host in self._activities if to_host]
        return DriverCalls(len(self._activities), self._waited, copies)

    @contextmanager
    def _attached(self) -> Iterator[None]:
        """Enable the activities that the timing instrument enables, so that both see the same."""
        cupti, kinds = self.cupti, self.cupti.ActivityKind
        enabled = (kinds.RUNTIME, kinds.DRIVER, kinds.CONCURRENT_KERNEL, kinds.MEMCPY, kinds.MEMSET)
        called = self._called  # kept here, in case that CUPTI does not
        subscriber = cupti.subscribe(called, None)
        try:
            for domain in (cupti.CallbackDomain.RUNTIME_API, cupti.CallbackDomain.DRIVER_API):
                cupti.enable_domain(1, subscriber, domain)
            for kind in enabled:
                cupti.activity_enable(kind)
            cupti.activity_register_callbacks(lambda: (BUFFER_BYTES, 0), self._completed)
            yield
        finally:
            cupti.unsubscribe(subscriber)
            for kind in enabled:
                cupti.activity_disable(kind)
            cupti.finalize()

    def _called(self, _userdata: object, _domain: int, _id: int, data: Any) -> None:
        """Called by CUPTI at the entry and the exit of each API call, in the thread that makes it."""
        thread = threading.get_ident()
        if data.callback_site != self.cupti.ApiCallbackSite.API_ENTER:
            self._depth[thread] = max(0, self._depth[thread] - 1)
            return
        self._depth[thread] += 1
        if not self._counting:
            return
        line = self._lines.setdefault(data.correlation_id, _line(sys._getframe().f_back))  # noqa: SLF001
        if self._depth[thread] == 1 and waits(data.function_name):
            self._waited.append(line)

    def _completed(self, records: Iterable[Any]) -> None:
        kinds, to_host = self.cupti.ActivityKind, self.cupti.ActivityMemcpyKind.DTOH
        for record in records:
            if record.kind == kinds.MEMCPY:
                self._activities.append((record.correlation_id, record.bytes, record.copy_kind == to_host))
            elif record.kind in (kinds.CONCURRENT_KERNEL, kinds.MEMSET):
                self._activities.append((record.correlation_id, 0, False))


def waits(function: str) -> bool:
    """Whether this function of the CUDA runtime or driver returns only when the GPU has done its work."""
    return bool(WAITS.search(function)) and not ASYNCHRONOUS_COPY.search(function)


def _line(frame: FrameType | None) -> str | None:
    place = python_lines.leading_to(frame)
    return str(place) if place else None
