"""What a call costs the host: the time to enqueue and to plan it, and where it waits for the GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from pytest_flashinfer_perf.api import Option, option, options

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Quantity, Row, Run
    from pytest_flashinfer_perf.extensions.host.host import HostObserver
    from pytest_flashinfer_perf.extensions.reports.sections import Section

USES = ("reports",)  # which has the sections

SHOWN = option(
    "--perf-host",
    daily=True,
    action="store_true",
    help="Show what each call costs the CPU: time to enqueue and plan, launches, allocations, synchronisations.",
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.TIMING: (SHOWN,)}


def pytest_perf_observers() -> tuple[HostObserver, ...]:
    from pytest_flashinfer_perf.extensions.host.host import HostObserver

    return (HostObserver(),)


def pytest_perf_row_parts() -> Mapping[str, Any]:
    from pytest_flashinfer_perf.extensions.host.host_time import NAME, HostTime

    return {NAME: Annotated[HostTime | None, "what a call [costs the host](host.md#what-is-written)"]}


def pytest_perf_terminal(config: pytest.Config, rows: Sequence[Row]) -> Iterator[str]:
    from pytest_flashinfer_perf.extensions.host import table

    yield from table.waiting(rows)
    if config.getoption(SHOWN.dest):
        yield from table.lines(rows)


def pytest_perf_sections(runs: Sequence[Run]) -> Iterable[Section]:
    from pytest_flashinfer_perf.extensions.host import table
    from pytest_flashinfer_perf.extensions.reports import story

    return table.sections([one.row for one in story.outcomes(runs) if one.row])


def pytest_perf_quantities() -> tuple[Quantity, ...]:
    from pytest_flashinfer_perf.extensions.host.host_gate import QUANTITY

    return (QUANTITY,)
