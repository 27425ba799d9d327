"""What a caller wants to know of a call beside its times: the seams by which extensions add parts to its row.

An observer looks at a call that this process makes by itself. Who times it in another way may have a roof of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pytest_flashinfer_perf.engine.cupti import Recorder
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.rows.row import Bound
from pytest_flashinfer_perf.settings.settings import PeaksChoice


@dataclass(frozen=True)
class Observation:
    """An observer's part of the row, None where it observed nothing, and its notes for the row."""

    part: object = None
    notes: tuple[str, ...] = ()


class Observer(Protocol):
    """Looks at a call twice: while CUPTI is attached, which may be never, and after all that is timed."""

    @property
    def name(self) -> str: ...

    def traced(self, recorder: Recorder, target: Target) -> object:
        """Return what CUPTI records of a call; `observed` gets it."""
        ...

    def observed(self, target: Target, device: Device, seconds: float, traced: Any) -> Observation:
        """Observe a call that takes the device so many seconds; `traced` is None without CUPTI."""
        ...


@dataclass(frozen=True)
class Reached:
    """How near calls came to a roof, and the parts of the row that say by what.

    The share is in percent, with the side that binds and the source of the peaks; above `limit_pct` of 100 the time or
    the work is wrong.
    """

    sol_pct: float | None = None
    bound: Bound | None = None
    peaks: str | None = None
    limit_pct: float | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class OwnRoof(Protocol):
    """The roof of calls that something else than their device limits, as the links between several processes."""

    def reached(self, moved: float | None, seconds: float, choice: PeaksChoice) -> Reached:
        """Compare a call with the roof: the bytes that it moves, if they are known, and its seconds."""
        ...
