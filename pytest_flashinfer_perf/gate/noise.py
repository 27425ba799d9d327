"""How far apart two processes that run the same code come out: calibrated, pooled over cases, or assumed.

Five processes say little about their own variance. So it is blended with what is known besides, weighted by degrees of
freedom: with the machine's calibration of this case, else with what all cases of this comparison say together (Smyth's
moderated variance), else with what one H200 showed. The process is the unit: samples within one say nothing here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.gate import tails

FEWEST_TO_POOL = 5
SURELY = 1.65  # standard errors
QUIETEST = 1e-4  # a clock ticks: agreement to better than 0.01 % is luck
ASSUMED_DF = 10.0  # above what was seen of most, so that it need not be doubted as much
ASSUMED = {"cycles": 0.004, "memory": 0.004, "compute": 0.03, "unknown": 0.03, "wall": 0.10}


@dataclass(frozen=True)
class Noise:
    """Variance between processes, of logarithms; how much is known of it, and from where."""

    variance: float
    df: float
    source: str

    @property
    def sd(self) -> float:
        return math.sqrt(self.variance)

    def scaled(self, factor: float) -> Noise:
        return Noise(self.variance * factor, self.df, self.source)

    def blended(self, variance: float, df: float) -> Noise:
        """With what `df` degrees of freedom of this very comparison say."""
        total = self.df + df
        return Noise((self.df * self.variance + df * variance) / total, total, self.source)


def assumed(kind: str, within: float = 0.0) -> Noise:
    """What one H200 showed between processes, and the error of a median within one."""
    return Noise(ASSUMED[kind] ** 2 + within**2, ASSUMED_DF, "assumed")


def variance(values: Sequence[float]) -> float:
    """As the statistics module has it, whose exact fractions take ten times as long."""
    mean = statistics.fmean(values)
    return max(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1), QUIETEST**2)


def pooled(own: Sequence[tuple[float, float]]) -> Noise | None:
    """Of variances with their degrees of freedom: the distribution they are drawn from. None for too few.

    The logarithms of sample variances scatter by trigamma(df / 2) even if all true variances are equal; what they
    surely scatter beyond that says how unlike the cases are, and so how little one is to be believed about another.
    """
    known = [(s2, df) for s2, df in own if df > 0]
    if len(known) < FEWEST_TO_POOL:
        return None
    centred = [math.log(s2) - tails.digamma(df / 2) + math.log(df / 2) for s2, df in known]
    centre = statistics.fmean(centred)
    chance = statistics.fmean(tails.trigamma(df / 2) for _, df in known)
    luck = SURELY * chance * math.sqrt(3 / len(known))  # the kurtosis of such logarithms is about 4
    beyond_chance = statistics.variance(centred) - chance - luck
    if beyond_chance <= 0:
        total = sum(df for _, df in known)
        return Noise(sum(s2 * df for s2, df in known) / total, total, "pooled")
    half = tails.inverse_trigamma(beyond_chance)
    return Noise(math.exp(centre + tails.digamma(half) - math.log(half)), 2 * half, "pooled")
