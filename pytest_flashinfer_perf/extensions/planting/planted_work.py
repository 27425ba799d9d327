"""Extra work of a known duration behind each timed call of some tests, to verify that a slowdown is found.

The file of `--perf-plant` names the tests. On a GPU the work is `torch.cuda._sleep`, a kernel that spins, whose time is
that of a launch plus its cycles. Elsewhere the host spins.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_flashinfer_perf.api import (
    Device,
    FlashinferPerfError,
    Measuring,
    Target,
    file_io,
    instruments,
    stash,
    timing,
)

PART = "planted_us"  # of the row
LONG = 200_000  # cycles, about 0.1 ms
CALLS = 100


class PlantError(FlashinferPerfError):
    """The file of `--perf-plant` is not valid; the message names it."""


def read(path: Path) -> dict[str, float]:
    """Seconds by test id."""
    try:
        plants = {test: float(seconds) for test, seconds in file_io.read_json(path).items()}
    except (file_io.FileError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise PlantError(f"{path}: must hold seconds by test id: {error}") from error
    for test, seconds in plants.items():
        if not 0 < seconds < math.inf:
            raise PlantError(f"{path}: {test}: seconds must be above zero, got {seconds}")
    return plants


class Planting:
    """Puts the work behind the timed calls of these tests."""

    def __init__(self, plants: Mapping[str, float]) -> None:
        self._plants = plants

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Generator[None, object, object]:
        seconds = self._plants.get(item.nodeid)
        if seconds is not None and stash.measures(item):
            perf: Any = item.funcargs["perf"]
            perf.time_calls = functools.partial(followed, perf.time_calls, seconds)
        return (yield)


def followed(  # noqa: PLR0913 - as what times calls has them
    time_calls: Callable[..., timing.Timing],
    seconds: float,
    target: Target,
    measuring: Measuring,
    device: Device,
    *,
    cuda_graph: bool,
    verify: timing.Verify,
    spent: float,
) -> timing.Timing:
    """Time the call with the work behind it; what was planted is a part of the row."""
    extra = planned(seconds, measuring, device, cuda_graph=cuda_graph)
    slowed = extra.behind(target)

    def verify_own(timed: Target, work: instruments.Work) -> None:
        verify(target if timed is slowed else timed, work)

    timed = time_calls(slowed, measuring, device, cuda_graph=cuda_graph, verify=verify_own, spent=spent)
    parts = {**timed.observations.parts, PART: extra.seconds * 1e6}
    return replace(timed, observations=replace(timed.observations, parts=parts))


@dataclass(frozen=True)
class Extra:
    """Work that adds `seconds` to a call, on a GPU at least the time of a launch."""

    work: Callable[[], object]
    seconds: float

    def behind(self, target: Target) -> Target:
        """The target followed by the work, at each of its placements."""
        rebuilt = target.rebuilt

        def both(*args: object, **kwargs: object) -> object:
            answer = target.function(*args, **kwargs)
            self.work()
            return answer

        again = None if rebuilt is None else lambda: self.behind(rebuilt())
        return replace(target, function=both, rebuilt=again)


@dataclass(frozen=True)
class Spin:
    """The seconds that a spinning kernel adds to the kernel before it."""

    launch: float
    per_cycle: float

    def lasting(self, seconds: float) -> Extra:
        cycles = max(1, round((seconds - self.launch) / self.per_cycle))
        return Extra(functools.partial(_sleep, cycles), self.launch + cycles * self.per_cycle)


def planned(seconds: float, measuring: Measuring, device: Device, *, cuda_graph: bool) -> Extra:
    if not device.is_gpu:
        return Extra(functools.partial(_busy, seconds), seconds)
    how = Measuring(instrument=measuring.instrument, cold_l2="none", iters=CALLS)
    return _spin(device, how, cuda_graph).lasting(seconds)


@functools.cache
def _spin(device: Device, how: Measuring, graph: bool) -> Spin:
    """Measure the spinning kernel as cases are measured, once for each way to launch."""

    def median(*cycles: int) -> float:
        timed = timing.run(Target(_sleep, cycles), how, device, cuda_graph=graph, verify=lambda *_: None)
        return statistics.median(timed.busy or timed.samples)

    alone, followed_by_one, longer = median(LONG), median(LONG, 1), median(LONG, LONG)
    return Spin(followed_by_one - alone, (longer - followed_by_one) / LONG)


def _sleep(*cycles: int) -> None:
    for one in cycles:
        torch.cuda._sleep(one)  # noqa: SLF001 - torch has no public kernel of a chosen time


def _busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
