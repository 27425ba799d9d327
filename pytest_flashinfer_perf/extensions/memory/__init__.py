"""What memory a call takes: its peak, what it holds and plans, what is left of it, and what graphs lose by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import pytest

from pytest_flashinfer_perf.api import Option, option, options

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Device, Quantity, Row
    from pytest_flashinfer_perf.extensions.memory.measuring import MemoryObserver

MEMORY = option(
    "--perf-memory",
    action="store_true",
    help="Measure and show what memory each call takes: its peak, what it holds and plans, and what is left of it.",
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.TIMING: (MEMORY,)}


def pytest_perf_observers(config: pytest.Config | None) -> tuple[MemoryObserver, ...]:
    from pytest_flashinfer_perf.extensions.memory.measuring import MemoryObserver

    return (MemoryObserver(),) if config and config.getoption(MEMORY.dest) else ()


def pytest_perf_row_parts() -> Mapping[str, Any]:
    from pytest_flashinfer_perf.extensions.memory.memory import NAME, CallMemory

    description = "what [memory a call takes](memory.md#what-is-written); `null` without `--perf-memory`"
    return {NAME: Annotated[CallMemory | None, description]}


def pytest_perf_terminal(config: pytest.Config, rows: Sequence[Row]) -> Iterator[str]:
    from pytest_flashinfer_perf.extensions.memory import memory

    return memory.lines(rows) if config.getoption(MEMORY.dest) else iter(())


def pytest_perf_quantities() -> tuple[Quantity, ...]:
    from pytest_flashinfer_perf.extensions.memory.memory_gate import QUANTITY

    return (QUANTITY,)


def pytest_perf_examined(device: Device) -> Mapping[str, str | None]:
    from pytest_flashinfer_perf.extensions.memory import measuring

    return {"memory": measuring.missing(device)}
