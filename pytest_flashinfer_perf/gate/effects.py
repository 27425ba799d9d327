"""How much slower a case became, with a confidence interval: one number per process, in logarithms.

Each row gives its median and, where there are some, its SM cycles; what cannot have been measured counts as unknown.
Both sides' numbers are `Replicates`; with their noise (`noise.py`) they become an `Effect`, and all cases together
say which effects are significant. What that means for a case's verdict is left to `judge.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from pytest_flashinfer_perf.gate import noise
from pytest_flashinfer_perf.gate.noise import Noise, above, beyond
from pytest_flashinfer_perf.rows.row import HostTime, Row
from pytest_flashinfer_perf.rows.scatter import is_measured, median_error


class Domain(str, Enum):
    """What is compared: the GPU's time or its cycles; the host's time to enqueue a call or to plan it."""

    TIME = "time"
    CYCLES = "cycles"
    HOST = "host"
    PLAN = "plan"

    __str__ = str.__str__


# The figures of a row.

LONG = 80_000  # cycles, of which the launches of the stamps are less than a tenth


def positive(value: float | None) -> float | None:
    return value if value is not None and is_measured(value) else None


def median_uncertainty(row: Row) -> float:
    """The relative error of the median, from the samples of its own process."""
    relative_iqr = row.stats.iqr / row.median if positive(row.stats.iqr) and positive(row.median) else 0.0
    return median_error(relative_iqr, max(1, row.stats.rounds))


def placement_figures(row: Row, figure: Literal["median", "cycles"]) -> tuple[float, ...]:
    """That figure of each placement; nothing where one lacks it."""
    values = [positive(getattr(placement, figure)) for placement in row.provenance.placements]
    return tuple(value for value in values if value) if None not in values else ()


@dataclass(frozen=True)
class Cycles:
    """The cycles of a row, and of each of its placements."""

    figure: float
    placements: tuple[float, ...] = ()


def is_long(row: Row) -> bool:
    """As far as it is known: a row without cycles is compared in time."""
    cycles = positive(row.clocks.cycles)
    return cycles is None or cycles >= LONG


def cycles_alike(rows: Sequence[Row]) -> list[Cycles]:
    """The cycles of all rows, by one method: counted, or for short calls the time multiplied by the SM clock.

    Nothing where one of them has none.
    """
    known = [(row, cycles) for row in rows if (cycles := positive(row.clocks.cycles))]
    if len(known) < len(rows):
        return []
    if all(map(is_long, rows)):
        return [Cycles(cycles, placement_figures(row, "cycles")) for row, cycles in known]
    return [_at_clock(row, ghz * 1e9) for row in rows if (ghz := positive(row.clocks.sm_ghz))]


def _at_clock(row: Row, hertz: float) -> Cycles:
    return Cycles(row.median * hertz, tuple(median * hertz for median in placement_figures(row, "median")))


def compared_by(rows: Sequence[Row], domain: Domain) -> list[float]:
    """What processes are compared by: their medians, or their cycles."""
    return [row.median for row in rows] if domain is Domain.TIME else [one.figure for one in cycles_alike(rows)]


# The figures of both sides.

MEMORY_WORKS = 60  # per cent of the memory's roof: from there on memory sets the pace, below it the SMs do
MOSTLY_WORKS = 0.2  # a larger share of a call without a kernel, and its time is that of launches
PAIR = 2.0  # the variance of a difference, in variances of one process


@dataclass(frozen=True)
class Replicates:
    """The medians of one case in one domain, one per process. If `paired`, the n-th of both sides belong together."""

    domain: Domain
    kind: str  # whose noise it has
    before: tuple[float, ...]
    after: tuple[float, ...]
    paired: bool
    within: float = 0.0
    placements: tuple[tuple[float, ...], ...] = ()  # of each process, where all have some
    tick: float = 0.0  # of the clock, relative to the figure

    @property
    def change(self) -> float:
        return statistics.fmean(map(math.log, self.after)) - statistics.fmean(map(math.log, self.before))

    @property
    def changes(self) -> tuple[float, ...]:
        """The change of each pair."""
        return tuple(math.log(a / b) for b, a in zip(self.before, self.after, strict=True))

    @property
    def df(self) -> int:
        return len(self.before) - 1 if self.paired else len(self.before) + len(self.after) - 2

    @property
    def variance(self) -> float:
        """The variance of one process, estimated from these processes."""
        if self.paired:
            return noise.variance(self.changes) / PAIR
        sides = [[math.log(x) for x in side] for side in (self.before, self.after) if len(side) > 1]
        return sum(noise.variance(side) * (len(side) - 1) for side in sides) / self.df

    @property
    def share(self) -> float:
        """The variance of the change, in variances of one process."""
        return 1 / len(self.before) + 1 / len(self.after)


def replicates(before: Sequence[Row], after: Sequence[Row], *, paired: bool) -> list[Replicates]:
    """In the domain to judge it by and, where there is one, in the other: cycles first where SMs set the pace."""
    both = (*before, *after)
    within = max(map(median_uncertainty, both))
    times = [tuple(row.median for row in side) for side in (before, after)]
    tick = max((noise.TICK_S / row.median for row in both if row.provenance.instrument == "cupti"), default=0.0)
    placed = tuple(placement_figures(row, "median") for row in both)
    in_time = Replicates(Domain.TIME, _kind(after[0]), times[0], times[1], paired, within, placed, tick)
    counted = cycles_alike(both)
    if not counted:
        return [in_time]
    placed = tuple(one.placements for one in counted)
    values = tuple(one.figure for one in counted)
    kind = "cycles" if all(map(is_long, both)) else "short"
    in_cycles = Replicates(
        Domain.CYCLES, kind, values[: len(before)], values[len(before) :], paired, placements=placed, tick=tick
    )
    return [in_cycles, in_time] if all(map(_paced_by_sms, both)) else [in_time, in_cycles]


def host_replicates(domain: Domain, before: Sequence[Row], after: Sequence[Row], *, paired: bool) -> Replicates | None:
    """The host's times, in seconds of a core of one speed; None where a row lacks them.

    The fastest call is compared, in units of the fastest reference: others take up to twice as long for reasons of the
    machine's own.
    """
    both = (*before, *after)
    seen = tuple(1e-6 * us for row in both if row.host and (us := _host_us(row.host, domain)))
    if len(seen) < len(both):
        return None
    return Replicates(domain, domain.value, seen[: len(before)], seen[len(before) :], paired)


def _host_us(host: HostTime, domain: Domain) -> float | None:
    return host.comparable_us if domain is Domain.HOST else host.comparable_plan_us


def _paced_by_sms(row: Row) -> bool:
    """Then its cycles are the same whatever the clock does, and its time is not."""
    roof_percent = positive(row.throughput.sol_pct)
    far_from_memorys_roof = roof_percent is not None and roof_percent < MEMORY_WORKS
    return row.throughput.bound == "compute" or (far_from_memorys_roof and is_long(row))


def _kind(row: Row) -> str:
    if row.provenance.instrument == "wall":
        return "wall"
    if row.trace.idle_share > MOSTLY_WORKS:
        return "gaps"
    if not is_long(row):
        return "short"
    bound = row.throughput.bound
    return bound if bound in noise.ASSUMED else "unknown"


# The change of a case, and how sure it is.

RISK = 0.05  # of each bound, and of missing what is called detectable
# The share of false ones among all that are called changed; most of it is spent on what a build fails for.
Q_SLOWER, Q_FASTER = 0.045, 0.005


@dataclass(frozen=True)
class Effect:
    """A change as a logarithm of a ratio, with its standard error and the source of that."""

    seen: Replicates
    noise: Noise
    significant: int = 0  # 1 slower, -1 faster, when all cases are looked at

    @property
    def change(self) -> float:
        return self.seen.change

    @property
    def error(self) -> float:
        return math.sqrt(self.noise.variance * self.seen.share)

    def p(self, sign: int) -> float:
        """The probability of a change this large in the direction of `sign` if there is none."""
        return above(sign * self.change / self.error, self.noise.df)

    def bound(self, sign: int, risk: float = RISK) -> float:
        """The upper (1) or lower (-1) one-sided confidence bound."""
        return self.change + sign * beyond(risk, self.noise.df) * self.error

    def detectable(self, threshold: float, cases: int) -> float:
        """The smallest slowdown that would be found in 95 of 100 comparisons of this kind, if no other case changed."""
        missed = beyond(RISK, self.noise.df) * self.error
        return missed + max(threshold, beyond(Q_SLOWER / cases, self.noise.df) * self.error)


def effects(all_seen: Sequence[Replicates], expected: Noise | None = None) -> list[Effect]:
    """With the noise of each: what is known of it besides, or expected of all, blended with what its processes say."""
    pools = {kind: _pool(all_seen, kind) for kind in {seen.kind for seen in all_seen}}
    made = []
    for seen in all_seen:
        prior = expected or _prior(seen, pools[seen.kind])
        made.append(Effect(seen, prior.blended(seen.variance, seen.df) if seen.df else prior))
    return made


def _prior(seen: Replicates, pool: Noise | None) -> Noise:
    """By its placements; without these, by all cases of its kind; last, what is assumed."""
    placed = noise.placed(seen.kind, seen.placements, seen.tick)
    return placed or pool or noise.assumed(seen.kind, seen.within)


def _pool(all_seen: Sequence[Replicates], kind: str) -> Noise | None:
    return noise.pooled([(seen.variance, seen.df) for seen in all_seen if seen.kind == kind and seen.df])


def marked(tested: Sequence[Effect]) -> list[Effect]:
    """Which of them are significant, in which direction, when all are looked at."""
    slower = benjamini_hochberg([effect.p(1) for effect in tested], Q_SLOWER)
    faster = benjamini_hochberg([effect.p(-1) for effect in tested], Q_FASTER)
    return [replace(effect, significant=up - down) for effect, up, down in zip(tested, slower, faster, strict=True)]


def benjamini_hochberg(p_values: Sequence[float], q: float) -> list[bool]:
    """Reject the k smallest, for the largest k whose k-th smallest is at most q k / m."""
    m = len(p_values)
    passing = [p for k, p in enumerate(sorted(p_values), start=1) if p <= q * k / m]
    limit = passing[-1] if passing else -1.0
    return [p <= limit for p in p_values]
