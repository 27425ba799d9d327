"""Count what an eager call requests from the driver, by line of Python.

CUPTI calls back at each function of the CUDA runtime and driver, whichever library calls it, while the line of Python
that led there is still on the stack.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from pytest_flashinfer_perf.runs.host_time import COPY_TO_HOST, SYNCHRONISATION, Line
from pytest_flashinfer_perf.timing import python_lines
from pytest_flashinfer_perf.timing.activities import Activity, Recorder
from pytest_flashinfer_perf.timing.counts import Counts
from pytest_flashinfer_perf.timing.instruments import Call

ASYNCHRONOUS_COPY = re.compile("Async")
WAITS = re.compile(r"^cu(da)?(Device|Ctx|Stream|Event|Thread|Context)Synchronize|^cu(da)?Memcpy")


def of(recorder: Recorder, call: Call) -> Counts:
    """Launches, synchronisations and copies to the host of one call."""
    driver = Driver(recorder)
    activities = driver.activities_of(call)
    copies = [(driver.lines.get(one.correlation_id), one.to_host) for one in activities if one.to_host is not None]
    waits = [Line(SYNCHRONISATION, line, count) for line, count in Counter(driver.waited).items()]
    fields = {
        "launches": len(activities),
        "synchronisations": len(driver.waited),
        "copies_to_host": len(copies),
        "copied_bytes": sum(size for _, size in copies),
    }
    return Counts(fields, (*waits, *_by_line(COPY_TO_HOST, copies)))


def _by_line(what: str, made: Iterable[tuple[str | None, int]]) -> list[Line]:
    """One entry for each line of Python, with its number of calls and bytes."""
    sizes: dict[str | None, list[int]] = {}
    for line, size in made:
        sizes.setdefault(line, []).append(size)
    return [Line(what, line, len(of_line), sum(of_line)) for line, of_line in sizes.items()]


@dataclass
class Driver:
    """CUPTI's callbacks during one call. What the runtime passes on to the driver is one call.

    `lines` has the line of Python of each call by its correlation id, `waited` that of each that waits for the GPU.
    """

    recorder: Recorder
    lines: dict[int, str | None] = field(default_factory=dict)
    waited: list[str | None] = field(default_factory=list)
    _counting: bool = False
    _depth: Counter[int] = field(default_factory=Counter)

    def activities_of(self, call: Call) -> list[Activity]:
        with self._subscribed():
            return self.recorder.of(partial(self._counted, call))

    def _counted(self, call: Call) -> None:
        self._counting = True
        try:
            call()
        finally:
            self._counting = False

    @contextmanager
    def _subscribed(self) -> Iterator[None]:
        cupti, called = self.recorder.cupti, self._called  # a reference to it, in case CUPTI holds none
        subscriber = cupti.subscribe(called, None)
        try:
            for domain in (cupti.CallbackDomain.RUNTIME_API, cupti.CallbackDomain.DRIVER_API):
                cupti.enable_domain(1, subscriber, domain)
            yield
        finally:
            cupti.unsubscribe(subscriber)

    def _called(self, _userdata: object, _domain: int, _id: int, data: Any) -> None:
        """Called by CUPTI at the entry and the exit of each API call, in the thread that makes it."""
        thread = threading.get_ident()
        if data.callback_site != self.recorder.cupti.ApiCallbackSite.API_ENTER:
            self._depth[thread] = max(0, self._depth[thread] - 1)
            return
        self._depth[thread] += 1
        if not self._counting:
            return
        line = self.lines.setdefault(data.correlation_id, _line(sys._getframe().f_back))  # noqa: SLF001
        if self._depth[thread] == 1 and waits(data.function_name):
            self.waited.append(line)


def waits(function: str) -> bool:
    """Whether this function of the CUDA runtime or driver returns only when the GPU has done its work."""
    return bool(WAITS.search(function)) and not ASYNCHRONOUS_COPY.search(function)


def _line(frame: FrameType | None) -> str | None:
    place = python_lines.leading_to(frame)
    return str(place) if place else None
