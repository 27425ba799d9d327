"""Count what an eager call requests from the driver, by line of Python.

CUPTI calls back at each function of the CUDA runtime and driver, whichever library calls it, while the line of Python
that led there is still on the stack. Allocations are counted by torch's allocator, which mostly asks no driver.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from pytest_flashinfer_perf.api import cupti as core_cupti
from pytest_flashinfer_perf.api import errors, instruments
from pytest_flashinfer_perf.engine import tracebacks
from pytest_flashinfer_perf.extensions.host.host_time import ALLOCATION, COPY_TO_HOST, SYNCHRONISATION, HostLine

ASYNCHRONOUS_COPY = re.compile("Async")
WAITS = re.compile(r"^cu(da)?(Device|Ctx|Stream|Event|Thread|Context)Synchronize|^cu(da)?Memcpy")


def of(recorder: core_cupti.Recorder, call: instruments.Call) -> Counts:
    """Launches, synchronisations and copies to the host of one call."""
    driver = Driver(recorder)
    activities = driver.activities_of(call)
    copies = [(driver.lines.get(one.correlation_id), one.to_host) for one in activities if one.to_host is not None]
    waits = [HostLine(SYNCHRONISATION, line, count) for line, count in Counter(driver.waited).items()]
    fields = {
        "launches": len(activities),
        "synchronisations": len(driver.waited),
        "copies_to_host": len(copies),
        "copied_bytes": sum(size for _, size in copies),
    }
    return Counts(fields, (*waits, *_by_line(COPY_TO_HOST, copies)))


def _by_line(what: str, made: Iterable[tuple[str | None, int]]) -> list[HostLine]:
    """One entry for each line of Python, with its number of calls and bytes."""
    sizes: dict[str | None, list[int]] = {}
    for line, size in made:
        sizes.setdefault(line, []).append(size)
    return [HostLine(what, line, len(of_line), sum(of_line)) for line, of_line in sizes.items()]


@dataclass
class Driver:
    """CUPTI's callbacks during one call. What the runtime passes on to the driver is one call.

    `lines` has the line of Python of each call by its correlation id, `waited` that of each that waits for the GPU.
    """

    recorder: core_cupti.Recorder
    lines: dict[int, str | None] = field(default_factory=dict)
    waited: list[str | None] = field(default_factory=list)
    _counting: bool = False
    _depth: Counter[int] = field(default_factory=Counter)

    def activities_of(self, call: instruments.Call) -> list[core_cupti.Activity]:
        with self._subscribed():
            return self.recorder.of(partial(self._counted, call))

    def _counted(self, call: instruments.Call) -> None:
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
        line = self.lines.setdefault(data.correlation_id, leading_to(sys._getframe().f_back))  # noqa: SLF001
        if self._depth[thread] == 1 and waits(data.function_name):
            self.waited.append(line)


def waits(function: str) -> bool:
    """Whether this function of the CUDA runtime or driver returns only when the GPU has done its work."""
    return bool(WAITS.search(function)) and not ASYNCHRONOUS_COPY.search(function)


# Find the line of Python that leads to a call, outside of torch and of this package.

TORCH = Path(torch.__file__).parent


def leading_to(frame: FrameType | None) -> str | None:
    while frame is not None:
        code = frame.f_code
        if is_callers(code.co_filename):
            return f"{_shown(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return None


@functools.cache
def _shown(file: str) -> Path:
    """The file relative to site-packages or to the working directory."""
    _, installed, inside = file.rpartition("/site-packages/")
    path, here = Path(inside if installed else file), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


@functools.cache
def is_callers(file: str) -> bool:
    return not (Path(file).is_relative_to(TORCH) or tracebacks.is_between(file))


# What was counted of a call on the host, or why nothing was.


@dataclass(frozen=True)
class Counts:
    """Counts by the names of the fields of HostTime, the lines of Python behind them, and the seconds of counting."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    lines: tuple[HostLine, ...] = ()
    why_not: str = ""
    seconds: float = 0.0

    def __add__(self, other: Counts) -> Counts:
        why_not = "; ".join(filter(None, (self.why_not, other.why_not)))
        fields, lines = {**self.fields, **other.fields}, (*self.lines, *other.lines)
        return Counts(fields, lines, why_not, self.seconds + other.seconds)


def counted(instrument: str, count: Callable[[], Counts]) -> Counts:
    """Count; an error becomes the reason why nothing was counted, and does not fail the case."""
    start = time.perf_counter()
    try:
        counts = count()
    except Exception as error:  # noqa: BLE001 - whatever stops it is the reason
        counts = Counts(why_not=f"{instrument} counts nothing of the host: {errors.in_one_line(error)}")
    return replace(counts, seconds=time.perf_counter() - start)


# Count allocations of a call from torch's GPU allocator, by line of Python. The allocator's counts are read before
# and after a call. If there were allocations, one more call is made, in which the counts are read at every line of
# Python. The allocator's own history has the lines too, but takes a second to start.

COUNTS, BYTES = "allocation", "requested_bytes"


def allocations_of(call: instruments.Call, device: torch.device) -> Counts:
    """Allocations of one call."""

    def totals() -> tuple[int, int]:
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        return stats[COUNTS]["all"]["allocated"], stats[BYTES]["all"]["allocated"]

    before = totals()
    call()
    count, size = (now - was for now, was in zip(totals(), before, strict=True))
    lines = Watch(totals).lines(call) if count else ()
    return Counts({"allocations": count, "allocated_bytes": size}, tuple(lines))


@dataclass
class Watch:
    """Attribute allocations to the line of Python that runs meanwhile, other than lines of torch or this package."""

    totals: Callable[[], tuple[int, int]]
    _place: str | None = None
    _seen: tuple[int, int] = (0, 0)
    _found: dict[str | None, tuple[int, int]] = field(default_factory=dict)

    def lines(self, call: instruments.Call) -> list[HostLine]:
        self._seen, other = self.totals(), sys.gettrace()
        sys.settrace(self._traced)
        try:
            call()
        finally:
            sys.settrace(other)
        self._attribute()
        return [HostLine(ALLOCATION, place, *count_and_size) for place, count_and_size in self._found.items()]

    def _traced(self, frame: FrameType, event: str, _argument: Any) -> Any:
        """Called when a function starts, when a line starts, and when a function returns to its caller's line."""
        if not is_callers(frame.f_code.co_filename):
            return None
        self._attribute()
        self._place = leading_to(frame.f_back if event == "return" else frame)
        return self._traced

    def _attribute(self) -> None:
        now = self.totals()
        count, size = (new - old for new, old in zip(now, self._seen, strict=True))
        if count:
            known = self._found.get(self._place, (0, 0))
            self._found[self._place] = known[0] + count, known[1] + size
        self._seen = now
