"""How much slower a case became, with a confidence interval: one number per process, in logarithms.

What rows say is in `figures.py`. Both sides' numbers are `Replicates`; with their noise (`noise.py`) they become an
`Effect`, and all cases together say which effects are significant. What that means for a case's verdict is left to
`judge.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from pytest_flashinfer_perf.gate import figures, noise
from pytest_flashinfer_perf.gate.figures import RowFigure
from pytest_flashinfer_perf.gate.noise import Noise
from pytest_flashinfer_perf.gate.student import t_quantile, t_tail_probability
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.scatter import relative_error


class Domain(str, Enum):
    """What the gate compares by itself: the time of calls, or their cycles.

    Of a call with gaps the time in which its kernels run and its gaps, each by itself. A suspect's also by STAMPS.
    A quantity of an extension has its figures' names as domains.
    """

    TIME = "time"
    BUSY = "busy"
    CYCLES = "cycles"
    GAPS = "gaps"
    STAMPS = "stamps"

    __str__ = str.__str__


# The figures of both sides.

MAX_IDLE_SHARE = 0.2  # above this share of idle GPU time a call measures launches, not kernels
ENOUGH = 4  # degrees of freedom, as of five pairs or of three processes a side
LEAST_LEFT = 0.1  # of a time that is a difference of two
PAIR = 2.0  # the variance of a difference, in variances of one process


@dataclass(frozen=True)
class Replicates:
    """The medians of one case in one domain, one per process. If `paired`, the n-th of both sides belong together."""

    domain: str
    kind: str  # the name of the noise that it has
    before: tuple[float, ...]
    after: tuple[float, ...]
    paired: bool
    within: float = 0.0
    placements: tuple[tuple[float, ...], ...] = ()  # of each process, where all have some
    extra_error: float = 0.0  # an error that placements do not show, such as the ticks of a clock
    load: float = 0.0  # the share of the machine that others used, by which times may be too long
    noisy_share: float = 1.0  # the part of the figure to which the noise of its kind applies

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
    def processes(self) -> float:
        """The variance of the change, in variances of one process."""
        return 1 / len(self.before) + 1 / len(self.after)


def replicates(before: Sequence[Row], after: Sequence[Row], *, paired: bool, whole: bool = False) -> list[Replicates]:
    """Give the replicates in the domain to judge by and in the other, if any: cycles come first where SMs set the pace.

    They are in busy time rather than in time, if all rows have it and one has gaps; never as a `whole`.
    """
    both = (*before, *after)
    times, count = figures.kernel_times(both, whole=whole), len(before)
    is_split = figures.are_split(both) and not whole
    has_gaps = is_split and any(row.timed.gap for row in both)
    ticks = [
        noise.TICK_S / one.value for row, one in zip(both, times, strict=True) if row.provenance.instrument == "cupti"
    ]
    tick, kind = max(ticks, default=0.0), _kind(after[0], is_split=is_split)
    by_calls = noise.SHARE_OF_CALL_ERROR * max(map(figures.scatter_of_calls, both)) if kind == "unknown" else 0.0
    domain, extra_error = Domain.BUSY if has_gaps else Domain.TIME, math.hypot(tick, by_calls)
    in_time = _sides(domain, kind, times, count, paired=paired, extra_error=extra_error)
    load, within = _load(before, after, several=in_time.df >= ENOUGH), max(map(figures.median_uncertainty, both))
    in_time = replace(in_time, load=load, within=within)
    counted = figures.cycles_alike(both, whole=whole)
    if not counted:
        return [in_time]
    kind = "cycles" if all(map(figures.is_long, both)) else "short"
    queued = _error_of_queued_gaps(both, times) if kind == "cycles" and has_gaps else 0.0
    in_cycles = _sides(Domain.CYCLES, kind, counted, count, paired=paired, extra_error=max(tick, queued))
    return [in_cycles, in_time] if all(map(figures.paced_by_sms, both)) else [in_time, in_cycles]


def _sides(domain: Domain, kind: str, of_both: Sequence[RowFigure], before: int, **facts: Any) -> Replicates:
    """Split the figures of both sides: the first `before` of them are the baseline's."""
    values = tuple(one.value for one in of_both)
    placed = tuple(one.placements for one in of_both)
    return Replicates(domain, kind, values[:before], values[before:], placements=placed, **facts)


def gap_replicates(before: Sequence[Row], after: Sequence[Row], *, paired: bool) -> Replicates | None:
    """Times of calls if only their gaps differed; None where gaps are unknown, or there are none."""
    both = (*before, *after)
    longest = max(row.timed.gap or 0.0 for row in both)
    if not longest or not figures.are_split(both):
        return None
    kind = "gaps of launches" if any(row.timed.gap_of == "host" for row in both) else "gaps of graphs"
    share = longest / ((both[0].timed.busy or 0.0) + longest)
    calls = figures.gaps_plus_first_kernel_time(both)
    return _sides(Domain.GAPS, kind, calls, len(before), paired=paired, noisy_share=share)


def stamped_replicates(before: Sequence[Row], after: Sequence[Row], *, paired: bool) -> Replicates | None:
    """The kernels' time as the stamps show it, of calls that were queued; None where a row has no such time.

    Stamps and gaps between queued launches take time too, as much on both sides. But on some streams a gap is twice as
    long, and each placement has a stream of its own. So what is compared is the time of the kernels before, and how
    much longer the time between stamps became at placements of which a quarter took less.
    """
    both = (*before, *after)
    stamped = [one.lower_quartile for row in both if (one := figures.between_stamps(row))]
    if len(stamped) < len(both):
        return None
    kernels = statistics.fmean(one.value for one in figures.kernel_times(both)[: len(before)])
    own = statistics.fmean(stamped[: len(before)]) - kernels
    left = [RowFigure(max(LEAST_LEFT * kernels, one - own)) for one in stamped]
    differ = math.hypot(noise.STAMPS_DIFFER_S, _seconds_queued_gaps_differ(own)) / kernels
    return _sides(Domain.STAMPS, "stamps", left, len(before), paired=paired, within=differ)


def _error_of_queued_gaps(rows: Sequence[Row], times: Sequence[RowFigure]) -> float:
    """The largest share of cycles that gaps between queued kernels can differ by; 0 where no row was stamped."""
    stamped = zip(map(figures.between_stamps, rows), times, strict=True)
    return max(
        (_seconds_queued_gaps_differ(one.value - time.value) / one.value for one, time in stamped if one), default=0.0
    )


def _seconds_queued_gaps_differ(without_kernel: float) -> float:
    """The seconds by which gaps between stamped kernels differ, if no kernel runs for this long between stamps."""
    return noise.QUEUED_GAPS * max(0.0, without_kernel - noise.STAMPS_S)


def _load(before: Sequence[Row], after: Sequence[Row], *, several: bool) -> float:
    """The largest share that others had of the machine; of several processes what the sides differ by on average.

    What both sides had to bear shows in the scatter of several processes.
    """
    loads = [[row.execution.contention for row in side] for side in (before, after)]
    shares = [[load.share if load else 0.0 for load in side] for side in loads]
    first, second = map(statistics.fmean, shares)
    return abs(second - first) if several else max(map(max, shares))


def _kind(row: Row, *, is_split: bool) -> str:
    if row.provenance.instrument == "wall":
        return "wall"
    if row.trace.idle_share > MAX_IDLE_SHARE and not is_split:
        return "gaps"
    if not figures.is_long(row):
        return "short"
    bound = row.throughput.bound
    return bound if bound in noise.ASSUMED else "unknown"


# The change of a case, and how sure it is.

RISK = 0.05  # of each bound, and of missing what is called detectable
# The share of false ones among all that are called changed; most of it is spent on what a build fails for.
Q_SLOWER, Q_FASTER = 0.045, 0.005


@dataclass(frozen=True)
class Effect:
    """A change as a logarithm of a ratio, with the noise that gives it a standard error."""

    replicates: Replicates
    noise: Noise
    significant: int = 0  # 1 slower, -1 faster, when all cases are looked at

    @property
    def change(self) -> float:
        return self.replicates.change

    @property
    def error(self) -> float:
        return math.sqrt(self.noise.variance * self.replicates.processes)

    def p(self, sign: int) -> float:
        """The probability of a change this large in the direction of `sign` if there is none."""
        return t_tail_probability(sign * self.change / self.error, self.noise.df)

    def bound(self, sign: int, risk: float = RISK) -> float:
        """The upper (1) or lower (-1) one-sided confidence bound."""
        return self.change + sign * t_quantile(risk, self.noise.df) * self.error

    def detectable(self, threshold: float, cases: int) -> float:
        """The smallest slowdown that would be found in 95 of 100 comparisons of this kind, if no other case changed."""
        missed = t_quantile(RISK, self.noise.df) * self.error
        return missed + max(threshold, t_quantile(Q_SLOWER / cases, self.noise.df) * self.error)


def effects(all_replicates: Sequence[Replicates], expected: Noise | None = None) -> list[Effect]:
    """Add the noise to each: what is expected of all or known from elsewhere, blended with what its processes say."""
    pools = {kind: _pool(all_replicates, kind) for kind in {each.kind for each in all_replicates}}
    results = []
    for each in all_replicates:
        shared = noise.BETWEEN_SIDES_SD.get(each.kind, 0.0) ** 2 + each.load**2
        results.append(Effect(each, _noise(each, expected, pools[each.kind]).widened(shared / each.processes)))
    return results


def _noise(own: Replicates, expected: Noise | None, pool: Noise | None) -> Noise:
    """Estimate the noise; of the host's clock from the processes alone, since no two machines are alike."""
    if own.kind == "wall" and own.df >= ENOUGH and not expected:
        prior = pool or Noise(0.0, 0.0, "processes")
    else:
        prior = expected or _prior(own, pool)
    return prior.blended(own.variance, own.df) if own.df else prior


def _prior(own: Replicates, pool: Noise | None) -> Noise:
    """Estimate the noise from placements; without these, from all cases of its kind; else assume it."""
    by_placements = noise.from_placements(own.kind, own.placements, own.extra_error, own.noisy_share)
    return by_placements or pool or noise.assumed(own.kind, own.within, own.noisy_share)


def _pool(all_replicates: Sequence[Replicates], kind: str) -> Noise | None:
    return noise.pooled([(one.variance, one.df) for one in all_replicates if one.kind == kind and one.df])


def with_significance(tested: Sequence[Effect]) -> list[Effect]:
    """Mark the effects that are significant, with their direction, when all are looked at."""
    slower = benjamini_hochberg([effect.p(1) for effect in tested], Q_SLOWER)
    faster = benjamini_hochberg([effect.p(-1) for effect in tested], Q_FASTER)
    return [replace(effect, significant=up - down) for effect, up, down in zip(tested, slower, faster, strict=True)]


def benjamini_hochberg(p_values: Sequence[float], q: float) -> list[bool]:
    """Reject the k smallest, for the largest k whose k-th smallest is at most q k / m."""
    m = len(p_values)
    passing = [p for k, p in enumerate(sorted(p_values), start=1) if p <= q * k / m]
    limit = passing[-1] if passing else -1.0
    return [p <= limit for p in p_values]


# The backends that share the first place: those that are not significantly slower than the fastest.


def fastest(rows: Sequence[Row]) -> list[Row]:
    """The least median first; of sound rows, and where there is another row to be faster than."""
    sound = [row for row in rows if row.is_sound and row.median > 0]
    if len(rows) < 2 or not sound:
        return []
    first = min(sound, key=lambda row: row.median)
    return [first, *(row for row in sound if row is not first and not is_slower(row, first))]


def is_slower(row: Row, first: Row) -> bool:
    """Whether one row is slower with 95 % confidence, judged as two processes are: by the noise that the gate assumes.

    Where the samples of the two scatter by more than that noise, their scatter counts.
    """
    [effect] = effects(replicates([first], [row], paired=True, whole=True)[:1])
    own = math.hypot(_error(first, effect.replicates.domain), _error(row, effect.replicates.domain))
    return t_tail_probability(effect.change / max(effect.error, own), effect.noise.df) < RISK


def _error(row: Row, domain: str) -> float:
    """The relative standard error of a median."""
    is_counted = domain == "cycles" and figures.is_long(row)
    samples = (row.clocks.cycles_per_call or ()) if is_counted else row.stats.data
    return relative_error(samples, row.spread, row.stats.rounds)
