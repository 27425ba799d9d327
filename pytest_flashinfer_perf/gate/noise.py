"""The noise between processes: estimated from placements, pooled over cases, or assumed.

Five processes say little about their own variance. So it is blended with what is known besides, weighted by degrees of
freedom: with what the rows' own placements show, else with what all cases of this comparison say together (Smyth's
moderated variance), else with an assumption. Samples of one placement are no evidence here: they agree with each
other, and not with the next placement.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

FEWEST_TO_POOL = 5
FEWEST_PLACEMENTS = 3
BLOCKS = 5
SURELY = 1.65  # standard errors
QUIETEST = 1e-4  # a clock ticks: agreement to better than 0.01 % is luck
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
    "host": 0.07,
    "plan": 0.15,
}
# What the placements of one process do not show of the next one: tuned on one card, held on another and on an H100
# (evidence/placements-h200.md, evidence/placements-h100.md). Gaps differ by 17 and 33 % between four processes where
# the host launches, by 13 % in cuDNN's graphs, and some by much more. Functions of torch differ by
# 0.2 % more than their placements show (evidence/gaps-h200.md).
UNSEEN = {
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
OF_CALLS = 0.32  # of the error that the median of a single call would have
# What all processes of a side share and the other side's need not, by the host's clock: evidence/busy-cpu.md.
BETWEEN_SIDES = {"wall": 0.0125}
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
        """With what `df` degrees of freedom of this very comparison say."""
        total = self.df + df
        return Noise((self.df * self.variance + df * variance) / total, total, self.source)

    def widened(self, variance: float) -> Noise:
        """By what more processes would not show."""
        return Noise(self.variance + variance, self.df, self.source)


def assumed(kind: str, within: float = 0.0, share: float = 1.0) -> Noise:
    """The noise to assume if nothing is known about the case; that of the kind is of this share of the figure."""
    return Noise((share * ASSUMED[kind]) ** 2 + within**2, ASSUMED_DF, "assumed")


def placed(kind: str, processes: Sequence[Sequence[float]], besides: float = 0.0, share: float = 1.0) -> Noise | None:
    """From the figures of each process's placements, whose mean that process's figure nearly is.

    None where a process has too few. `besides` is what they do not show of this figure, as what its clock rounds by,
    and `share` the part of the figure that has the noise of its kind.
    """
    if not processes or min(map(len, processes)) < FEWEST_PLACEMENTS:
        return None
    logs = [_blocks([math.log(value) for value in process]) for process in processes]
    df = sum(len(process) - 1 for process in logs)
    each = sum(variance(process) * (len(process) - 1) for process in logs) / df
    seen = each * statistics.fmean(1 / len(process) for process in logs)
    unseen = (share * UNSEEN[kind]) ** 2 + besides**2
    total = seen + unseen
    return Noise(total, total**2 / (seen**2 / df + unseen**2 / ASSUMED_DF), "placements")


def _blocks(values: Sequence[float]) -> list[float]:
    """Means of a few neighbours each: what drifts makes them differ, where it hides among single ones."""
    count = min(BLOCKS, len(values))
    edges = [round(i * len(values) / count) for i in range(count + 1)]
    return [statistics.fmean(values[start:end]) for start, end in itertools.pairwise(edges)]


def variance(values: Sequence[float]) -> float:
    """As the statistics module has it, whose exact fractions take ten times as long."""
    mean = statistics.fmean(values)
    return max(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1), QUIETEST**2)


def pooled(own: Sequence[tuple[float, float]]) -> Noise | None:
    """The distribution that these variances are drawn from; None if they are too few.

    The logarithms of sample variances scatter by trigamma(df / 2) even if all true variances are equal; what they
    surely scatter beyond that says how unlike the cases are, and so how little one is to be believed about another.
    """
    known = [(s2, df) for s2, df in own if df > 0]
    if len(known) < FEWEST_TO_POOL:
        return None
    centred = [math.log(s2) - digamma(df / 2) + math.log(df / 2) for s2, df in known]
    centre = statistics.fmean(centred)
    chance = statistics.fmean(trigamma(df / 2) for _, df in known)
    luck = SURELY * chance * math.sqrt(3 / len(known))  # the kurtosis of such logarithms is about 4
    beyond_chance = statistics.variance(centred) - chance - luck
    if beyond_chance <= 0:
        total = sum(df for _, df in known)
        return Noise(sum(s2 * df for s2, df in known) / total, total, "pooled")
    half = inverse_trigamma(beyond_chance)
    return Noise(math.exp(centre + digamma(half) - math.log(half)), 2 * half, "pooled")


# Tail probabilities of the normal and of Student's t distribution, and derivatives of log gamma. scipy has them all;
# it would weigh more than everything else that a comparison needs.

NORMAL = NormalDist()
NEARLY_NORMAL = 1e5
SMALLEST, ROUNDED = 1e-300, 1e-13


@functools.lru_cache(maxsize=4096)
def above(t: float, df: float) -> float:
    """The probability of more than `t`: Student's with `df` degrees of freedom, the normal one with infinitely many."""
    if t < 0:
        return 1.0 - above(-t, df)
    if df > NEARLY_NORMAL:
        return NORMAL.cdf(-t)
    return 0.5 * _incomplete_beta(df / (df + t * t), df / 2, 0.5)


@functools.lru_cache(maxsize=4096)
def beyond(p: float, df: float) -> float:
    """The t above which lies a share `p`, at most a half, of the distribution, by Newton's steps."""
    at = step = -NORMAL.inv_cdf(p)
    front = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(math.pi * df)
    while df <= NEARLY_NORMAL and step > ROUNDED * at:  # from below, where the tail is convex: none goes too far
        density = math.exp(front - (df + 1) / 2 * math.log1p(at * at / df))
        at += (step := (above(at, df) - p) / density if density else 0.0)
    return at


def upper_share(share: float, trials: float, risk: float) -> float:
    """The upper confidence bound of a share that was seen in so many independent trials (Clopper and Pearson)."""
    fewer, more = trials * (1 - share), trials * share + 1
    return _last_for_which(lambda truth: _incomplete_beta(1 - truth, fewer, more) > risk, share, 1.0) if fewer else 1.0


def _last_for_which(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The place between these two up to which it holds, by bisection."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function, on the side where its continued fraction converges fast."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's way to evaluate 1 + d1 / (1 + d2 / (1 + ...))."""
    value, c, d = 1.0, 1.0, 0.0
    for i in range(1, 1000):
        m = i // 2
        if i % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or SMALLEST)
        c = 1 + term / c or SMALLEST
        value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


def digamma(x: float) -> float:
    shift = 0.0
    while x < 8:
        shift, x = shift - 1 / x, x + 1
    y = 1 / (x * x)
    return shift + math.log(x) - 0.5 / x - y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y / 240)))


def trigamma(x: float) -> float:
    shift = 0.0
    while x < 8:
        shift, x = shift + 1 / (x * x), x + 1
    y = 1 / (x * x)
    return shift + 1 / x + y / 2 + y / x * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y / 30)))


def inverse_trigamma(y: float) -> float:
    """In the logarithm: trigamma falls from infinity to zero."""
    return math.exp(_last_for_which(lambda log: trigamma(math.exp(log)) > y, math.log(1e-6), math.log(1e9)))
