"""What a row says of a case that several processes ran together: the object `ranks` of its JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Row

# How many bytes cross each rank's link for each byte of the message: the factors by which nccl-tests makes busbw of
# algbw. The message is the whole one: what all ranks gather, or what each rank gives to reduce and scatter.
BUS_FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "all_to_all": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda _: 1.0,
    "reduce": lambda _: 1.0,
}
NAME = "ranks"  # of the part of a row
MULTICAST = "multicast allowed"  # the transport of ranks that could use it


@dataclass(frozen=True)
class RankTimes:
    """Times in seconds. `arrivals_s` and `ends_s` have a list for each rank, counted from a call's first arrival.

    `clock_bound_ns` is how far apart the clocks of two ranks may be; null if they are proved to differ. Then samples
    are the maximum over ranks, which contains how late a rank came. `late_figure_s` is the median of calls to which one
    rank came `late_s` later, and `punctual_figure_s` that of as many right before them. `clock_offset_ns` is the most
    that was taken off the times of a clock that drifts.
    """

    ranks: int
    collective: str | None
    figure: str
    backend: str
    transport: str
    clock_bound_ns: int | None
    clock_violations: int
    clock_calls: int
    max_over_ranks_s: float
    arrival_skew_s: float
    end_skew_s: float
    late_s: float
    late_figure_s: float
    arrivals_s: tuple[tuple[float, ...], ...]
    ends_s: tuple[tuple[float, ...], ...]
    busbw_gb_per_s: float | None = None
    links_gb_per_s: Mapping[str, float] = field(default_factory=dict)  # their roofs by source
    clock_offset_ns: int = 0
    punctual_figure_s: float | None = None

    def carrying(self, message: float | None, seconds: float) -> RankTimes:
        """With the bandwidth of each link, if the message's bytes and the collective are known."""
        if message is None or self.collective is None:
            return self
        return replace(self, busbw_gb_per_s=BUS_FACTORS[self.collective](self.ranks) * message / seconds / 1e9)

    def shares(self) -> dict[str, float]:
        """The percentage of each roof of the links, if the bandwidth is known."""
        if self.busbw_gb_per_s is None:
            return {}
        return {source: 100 * self.busbw_gb_per_s / rate for source, rate in self.links_gb_per_s.items()}

    @property
    def is_without_multicast(self) -> bool:
        return self.transport != MULTICAST

    @property
    def conditions(self) -> str:
        """What must be equal in rows that are compared."""
        return f"{self.ranks} ranks over {self.backend} ({self.transport}), {self.figure}"


def of(row: Row) -> RankTimes | None:
    return row.part(NAME, RankTimes)
