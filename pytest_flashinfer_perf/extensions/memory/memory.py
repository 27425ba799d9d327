"""What memory a call takes: the object `memory` of a row, and a table of the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_flashinfer_perf.api import Row, formatting

NAME = "memory"  # of the part of a row
NOTHING = "--perf-memory: nothing was measured"
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True)
class Repeated:
    """The peak of one call, or of one plan, and what is left of so many."""

    peak_bytes: int | None
    times: int
    left_bytes: int | None

    @property
    def leak(self) -> float | None:
        return None if self.left_bytes is None else self.left_bytes / self.times


@dataclass(frozen=True)
class CallMemory:
    """Bytes; null where this machine cannot count them, or nothing is planned. docs/memory.md says what each is."""

    call: Repeated
    plan: Repeated | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    grown: tuple[str, ...] = ()
    device_allocations: int | None = None
    outside_bytes: int | None = None
    resident_bytes: int | None = None

    @property
    def held_bytes(self) -> int:
        return sum(self.held.values())


def of(row: Row) -> CallMemory | None:
    return row.part(NAME, CallMemory)


def size(count: float) -> str:
    """With the unit that suits: 512 B, 34.25 MiB."""
    unit, power = next((pair for pair in UNITS.items() if abs(count) < 1024 * pair[1]), ("GiB", UNITS["GiB"]))
    return f"{count / power:.4g} {unit}"


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """In 80 columns: what a call takes, holds and plans, what is left of each call, and the process on the host."""
    measured = [(row, memory) for row in rows if (memory := of(row))]
    columns = f"  {'':<24}{'a call':>10}{'held':>10}{'a plan':>10}{'leak':>10}{'host':>10}"
    yield from ("", "what memory a call takes, beside its arguments", columns) if measured else (NOTHING,)
    for shape, backends in formatting.grouped(measured, lambda one: one[0].shape):
        yield shape
        for row, memory in backends:
            yield f"  {formatting.named(row):<24}{''.join(f'{cell:>10}' for cell in _cells(memory))}"
            for sentence in _faults(memory):
                yield from formatting.indented(sentence, 6)


def _cells(memory: CallMemory) -> Iterator[str]:
    planned = memory.plan.peak_bytes if memory.plan else None
    figures = (memory.call.peak_bytes, memory.held_bytes, planned, memory.call.leak, memory.resident_bytes)
    yield from ("-" if figure is None else size(figure) for figure in figures)


def _faults(memory: CallMemory) -> Iterator[str]:
    """What an engine must not have: leaks, memory that grows, and more that is taken from the driver."""
    for repeated, what in ((memory.call, "call"), (memory.plan, "plan")):
        if repeated and repeated.leak:
            yield f"leak: {size(repeated.leak)} a {what}, in {formatting.counted(repeated.times, what)}"
    yield from (f"grew: {name}" for name in memory.grown)
    if memory.device_allocations:
        yield f"torch asked the driver for memory {formatting.counted(memory.device_allocations, 'time')}"
    if (memory.outside_bytes or 0) > 0:
        yield f"past torch: {size(memory.outside_bytes or 0)} of the device"
