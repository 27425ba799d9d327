"""What a row says of a case that several processes ran together: the object `ranks` of its JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RankTimes:
    """Times in seconds. `arrivals_s` and `ends_s` have a list for each rank, counted from a call's first arrival.

    `clock_bound_ns` is how far apart the clocks of two ranks may be; null if they are proved to differ. Then samples
    are the maximum over ranks, which contains how late a rank came. `late_figure_s` is the median of calls to which one
    rank came `late_s` later.
    """

    ranks: int
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

    @property
    def conditions(self) -> str:
        """What must be equal in rows that are compared."""
        return f"{self.ranks} ranks over {self.backend} ({self.transport}), {self.figure}"
