"""Count what an eager call requests from the driver, and find the lines of Python by which it waits for the GPU.

CUPTI calls back at each function of the CUDA runtime and driver, whichever library calls it, while the line of Python
that led there is still on the stack. Allocations are counted by torch's allocator, which mostly asks no driver.
"""

from __future__ import annotations

import functools
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from pytest_flashinfer_perf.api import cupti as core_cupti
from pytest_flashinfer_perf.api import errors, instruments
from pytest_flashinfer_perf.engine import tracebacks
from pytest_flashinfer_perf.extensions.host.host_time import HostLine

ASYNCHRONOUS_COPY = re.compile("Async")
WAITS = re.compile(r"^cu(da)?(Device|Ctx|Stream|Event|Thread|Context)Synchronize|^cu(da)?Memcpy")


def of(recorder: core_cupti.Recorder, call: instruments.Call) -> Counts:
    """Launches and synchronisations of one call."""
    driver = Driver(recorder.cupti)
    launches = len(driver.activities_of(recorder, call))
    lines = tuple(HostLine(line, count) for line, count in Counter(driver.waited).items())
    return Counts({"launches": launches, "synchronisations": len(driver.waited), "lines": lines})


@dataclass
class Driver:
    """CUPTI's callbacks during one call. What the runtime passes on to the driver is one call.

    `waited` has the line of Python of each that waits for the GPU.
    """

    cupti: Any
    waited: list[str | None] = field(default_factory=list)
    _counting: bool = False
    _depth: Counter[int] = field(default_factory=Counter)

    def activities_of(self, recorder: core_cupti.Recorder, call: instruments.Call) -> list[core_cupti.Activity]:
        def counted() -> None:
            self._counting = True
            try:
                call()
            finally:
                self._counting = False

        with self._subscribed():
            return recorder.of(counted)

    @contextmanager
    def _subscribed(self) -> Iterator[None]:
        cupti, called = self.cupti, self._called  # a reference to it, in case CUPTI holds none
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
        if data.callback_site != self.cupti.ApiCallbackSite.API_ENTER:
            self._depth[thread] = max(0, self._depth[thread] - 1)
            return
        self._depth[thread] += 1
        if self._counting and self._depth[thread] == 1 and waits(data.function_name):
            self.waited.append(leading_to(sys._getframe().f_back))  # noqa: SLF001


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
    """What was counted, by the names of the fields of HostTime."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    why_not: str = ""

    def __add__(self, other: Counts) -> Counts:
        why_not = "; ".join(filter(None, (self.why_not, other.why_not)))
        return Counts({**self.fields, **other.fields}, why_not)


def counted(instrument: str, count: Callable[[], Counts]) -> Counts:
    """Count; an error becomes the reason why nothing was counted, and does not fail the case."""
    try:
        return count()
    except Exception as error:  # noqa: BLE001 - whatever stops it is the reason
        return Counts(why_not=f"{instrument} counts nothing of the host: {errors.in_one_line(error)}")


def allocations_of(call: instruments.Call, device: torch.device) -> Counts:
    """How often one call asks torch's GPU allocator for memory."""

    def total() -> int:
        return int(torch.cuda.memory_stats_as_nested_dict(device)["allocation"]["all"]["allocated"])

    before = total()
    call()
    return Counts({"allocations": total() - before})
