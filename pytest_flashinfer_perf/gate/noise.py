"""The noise between processes: estimated from placements, pooled over cases, or assumed.

Five processes say little about their own variance. So it is blended with what is known besides, weighted by degrees of
freedom: with what the rows' own placements show, else with what all cases of this comparison say together (Smyth's
moderated variance), else with an assumption. Samples of one placement are no evidence here: they agree with each
other, and not with the next placement.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate.student import digamma, inverse_trigamma, trigamma
from pytest_flashinfer_perf.rows.scatter import QUIETEST

FEWEST_TO_POOL = 5
FEWEST_PLACEMENTS = 3
BLOCKS = 5
SURE_ERRORS = 1.65  # standard errors of a one-sided 95 %
ASSUMED_DF = 10.0  # above what was seen of most, so that it need not be doubted as much
# Of rows without placements, levels of their process included: at most 1 case in 100 is noisier, docs/gate.md#how-sure.
ASSUMED = {
    "cycles": 0.03,
    "memory": 0.03,
    "short": 0.04,
    "compute": 0.04,
    "unknown": 0.04,
    "gaps": 0.06,
    "gaps of launches": 0.7,
    "gaps of graphs": 0.3,
    "stamps": 0.01,
    "wall": 0.10,
}
# The deviation between processes that placements do not show: tuned on one card, held on another and on an H100
# (evidence/placements-h200.md, evidence/placements-h100.md). Gaps differ by 17 and 33 % between four processes where
# the host launches, by 13 % in cuDNN's graphs, and some by much more. Functions of torch differ by
# 0.2 % more than their placements show (evidence/gaps-h200.md).
BETWEEN_PROCESSES_SD = {
    "cycles": 0.0005,
    "memory": 0.001,
    "short": 0.001,
    "compute": 0.008,
    "unknown": 0.002,
    "gaps": 0.06,
    "gaps of launches": 0.5,
    "gaps of graphs": 0.2,
    "wall": 0.10,
}
# Functions whose calls differ by 1 to 2 % among copies of their arguments, as attention in torch does, differ by 0.2 to
# 1.6 % between processes; those whose calls agree better do not (evidence/gaps-h200.md).
SHARE_OF_CALL_ERROR = 0.32  # of the error that the median of a single call would have
# A bias common to all processes of one side, for instance by a busy core, by the host's clock: evidence/busy-cpu.md.
BETWEEN_SIDES_SD = {"wall": 0.0125}
TICK_S = 32e-9 / math.sqrt(12)  # CUPTI's clock ticks in 32 ns: the sd of what is rounded to that
# Launches of stamps take 3.5 us, which differ by 0.03 to 0.4 us between processes. The rest of the time in which no
# kernel runs are gaps of queued launches: 0.3 to 22 us, which differ by 2 to 10 % (evidence/gaps-h200.md).
STAMPS_S, STAMPS_DIFFER_S, QUEUED_GAPS = 3.5e-6, 0.2e-6, 0.07


@dataclass(frozen=True)
class Noise:
    """The variance of logarithms between processes, its degrees of freedom and its source."""

    variance: float
    df: float
    source: str

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)

    def blended(self, variance: float, df: float) -> Noise:
        """Blend in the variance of this very comparison, with its degrees of freedom."""
        total = self.df + df
        return Noise((self.df * self.variance + df * variance) / total, total, self.source)

    def widened(self, variance: float) -> Noise:
        """Add a variance that more processes would not show."""
        return Noise(self.variance + variance, self.df, self.source)


def assumed(kind: str, within: float = 0.0, noisy_share: float = 1.0) -> Noise:
    """Assume the noise if nothing is known about the case; its kind's applies to `noisy_share` of the figure."""
    return Noise((noisy_share * ASSUMED[kind]) ** 2 + within**2, ASSUMED_DF, "assumed")


def from_placements(
    kind: str, processes: Sequence[Sequence[float]], extra_error: float = 0.0, noisy_share: float = 1.0
) -> Noise | None:
    """Estimate the noise from the figures of each process's placements; None where a process has too few.

    `extra_error` is what placements do not show of this figure, as what its clock rounds by, and `noisy_share` the part
    of the figure to which the noise of its kind applies.
    """
    if not processes or min(map(len, processes)) < FEWEST_PLACEMENTS:
        return None
    logs = [_blocks([math.log(value) for value in process]) for process in processes]
    df = sum(len(process) - 1 for process in logs)
    pooled_variance = sum(variance(process) * (len(process) - 1) for process in logs) / df
    shown = pooled_variance * statistics.fmean(1 / len(process) for process in logs)
    hidden = (noisy_share * BETWEEN_PROCESSES_SD[kind]) ** 2 + extra_error**2
    total = shown + hidden
    return Noise(total, total**2 / (shown**2 / df + hidden**2 / ASSUMED_DF), "placements")


def _blocks(values: Sequence[float]) -> list[float]:
    """Average a few neighbours each: a drift shows between such means, and hides among single values."""
    count = min(BLOCKS, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    return [statistics.fmean(values[start:end]) for start, end in itertools.pairwise(edges)]


def variance(values: Sequence[float]) -> float:
    """Compute the sample variance; the statistics module's exact fractions take ten times as long."""
    mean = statistics.fmean(values)
    return max(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1), QUIETEST**2)


def pooled(own: Sequence[tuple[float, float]]) -> Noise | None:
    """The distribution that these variances are drawn from; None if they are too few.

    The logarithms of sample variances scatter by trigamma(df / 2) even if all true variances are equal; what they
    surely scatter beyond that says how unlike the cases are, and so how little one is to be believed about another.
    """
    usable = [(s2, df) for s2, df in own if df > 0]
    if len(usable) < FEWEST_TO_POOL:
        return None
    centred = [math.log(s2) - digamma(df / 2) + math.log(df / 2) for s2, df in usable]
    centre = statistics.fmean(centred)
    chance = statistics.fmean(trigamma(df / 2) for _, df in usable)
    margin = SURE_ERRORS * chance * math.sqrt(3 / len(usable))  # the kurtosis of such logarithms is about 4
    beyond_chance = statistics.variance(centred) - chance - margin
    if beyond_chance <= 0:
        total = sum(df for _, df in usable)
        return Noise(sum(s2 * df for s2, df in usable) / total, total, "pooled")
    half = inverse_trigamma(beyond_chance)
    return Noise(math.exp(centre + digamma(half) - math.log(half)), 2 * half, "pooled")
