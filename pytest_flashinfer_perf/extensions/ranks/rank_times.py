"""What a row says of a case that several processes ran together: the object `ranks` of its JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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


# Half of what a datasheet calls the bandwidth of NVLink, which counts both directions: GB per second.
LINKS = {
    "NVIDIA A100-SXM4-80GB": 300.0,
    "NVIDIA H100 80GB HBM3": 450.0,
    "NVIDIA H200": 450.0,
    "NVIDIA B200": 900.0,
    "NVIDIA GB200": 900.0,
}


@dataclass(frozen=True)
class RankTimes:
    """Times in seconds: medians of the timed calls."""

    ranks: int
    collective: str | None
    backend: str
    transport: str
    max_over_ranks_s: float
    arrival_skew_s: float
    end_skew_s: float
    busbw_gb_per_s: float | None = None

    def carrying(self, message: float | None, seconds: float) -> RankTimes:
        """Add the bandwidth of each link, if the message's bytes and the collective are known."""
        if message is None or self.collective is None:
            return self
        return replace(self, busbw_gb_per_s=BUS_FACTORS[self.collective](self.ranks) * message / seconds / 1e9)

    @property
    def is_without_multicast(self) -> bool:
        return self.transport != MULTICAST

    @property
    def conditions(self) -> str:
        """The facts that must be equal in rows that are compared."""
        return f"{self.ranks} ranks over {self.backend} ({self.transport})"


def of(row: Row) -> RankTimes | None:
    return row.part(NAME, RankTimes)
