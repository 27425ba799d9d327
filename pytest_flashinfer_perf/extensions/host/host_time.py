"""Host time in a row, the object `host` of its JSON: null without a GPU. And what several tables say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_flashinfer_perf.api import load, scatter

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Row

NAME = "host"  # of the part of a row
REFERENCE_US = 20.0  # about what the fixed piece of host work takes on a server's core


@dataclass(frozen=True)
class HostLine:
    """A line of Python that waits for the GPU, and how often; null where none could be seen."""

    line: str | None
    count: int


@dataclass(frozen=True)
class HostTime:
    """Times in microseconds; counts are of one eager call, null where no instrument saw them.

    A call that `waits` for the GPU has the time that it waits in `host_us`. `plan_us` is null where nothing is planned.
    `rounds_us` has the fastest call of each round; the references are the fastest of a fixed piece of host work beside
    each round and each plan.
    """

    host_us: float
    rounds_us: tuple[float, ...]
    waits: bool
    plan_us: float | None = None
    plans_us: tuple[float, ...] = ()
    launches: int | None = None
    allocations: int | None = None
    synchronisations: int | None = None
    lines: tuple[HostLine, ...] = ()
    references_us: tuple[float, ...] = ()
    plan_references_us: tuple[float, ...] = ()
    contention: load.Contention | None = None

    @property
    def comparable_us(self) -> float | None:
        """The fastest call, as on a core that does the reference in 20 us; null in a row without references."""
        return _comparable(self.rounds_us, self.references_us)

    @property
    def comparable_plan_us(self) -> float | None:
        return _comparable(self.plans_us, self.plan_references_us)


def _comparable(times: tuple[float, ...], references: tuple[float, ...]) -> float | None:
    is_measured = times and references and scatter.is_measured(min(times)) and scatter.is_measured(min(references))
    return REFERENCE_US * min(times) / min(references) if is_measured else None


def of(row: Row) -> HostTime | None:
    return row.part(NAME, HostTime)


def places(host: HostTime) -> list[str]:
    """The lines of Python by which a call waits for the GPU, and how often."""
    return [f"{one.count} x {one.line or 'a line that could not be seen'}" for one in host.lines]
