"""Host time in a row, the object `host` of its JSON: null without a GPU. And what several tables say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_flashinfer_perf.api import scatter
from pytest_flashinfer_perf.machine.load import Contention

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Row

NAME = "host"  # of the part of a row
ALLOCATION, SYNCHRONISATION, COPY_TO_HOST = "allocation", "synchronisation", "copy to host"
REFERENCE_US = 20.0  # about what the fixed piece of host work takes on a server's core
COUNTED = {ALLOCATION: "allocations", SYNCHRONISATION: "synchronisations", COPY_TO_HOST: "copies_to_host"}


@dataclass(frozen=True)
class HostLine:
    """The line of Python that makes an allocation, a synchronisation or a copy; null where none could be seen."""

    what: str
    line: str | None
    count: int
    bytes: int | None = None


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
    allocated_bytes: int | None = None
    synchronisations: int | None = None
    copies_to_host: int | None = None
    copied_bytes: int | None = None
    lines: tuple[HostLine, ...] = ()
    pass_s: float = 0.0
    references_us: tuple[float, ...] = ()
    plan_references_us: tuple[float, ...] = ()
    contention: Contention | None = None

    @property
    def comparable_us(self) -> float | None:
        """The fastest call, as on a core that does the reference in 20 us; null in a row without references."""
        return _comparable(self.rounds_us, self.references_us)

    @property
    def comparable_plan_us(self) -> float | None:
        return _comparable(self.plans_us, self.plan_references_us)


def _comparable(times: tuple[float, ...], references: tuple[float, ...]) -> float | None:
    known = times and references and scatter.is_measured(min(times)) and scatter.is_measured(min(references))
    return REFERENCE_US * min(times) / min(references) if known else None


def of(row: Row) -> HostTime | None:
    return row.part(NAME, HostTime)


def outlasts(host: HostTime, on_device: float) -> bool:
    """Whether the host takes longer for a call than the GPU, for so many seconds: then the GPU waits for the host."""
    return host.host_us > 1e6 * on_device


def places(host: HostTime, what: str) -> list[str]:
    """How often, and by which lines of Python, a call does that."""
    made = (line for line in host.lines if line.what == what)
    return [f"{one.count} x {one.line or 'a line that could not be seen'}" for one in made]
