"""Tail probabilities of the normal and of Student's t distribution, and derivatives of log gamma.

scipy has them all; it would weigh more than everything else that a comparison needs.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

NORMAL = NormalDist()
NEARLY_NORMAL = 1e5
SMALLEST = 1e-300


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
    """The t above which lies a share `p`, at most a half, of the distribution."""
    if df > NEARLY_NORMAL:
        return -NORMAL.inv_cdf(p)
    low, high = 0.0, 1.0
    while above(high, df) > p:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle, df) > p else (low, middle)
    return high


def upper_share(share: float, trials: float, risk: float) -> float:
    """The upper confidence bound of a share that was seen in so many independent trials (Clopper and Pearson)."""
    low, high = share, 1.0
    for _ in range(60 if share < 1 else 0):
        middle = (low + high) / 2
        as_few = _incomplete_beta(1 - middle, trials * (1 - share), trials * share + 1)
        low, high = (middle, high) if as_few > risk else (low, middle)
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
        d = 1 / _away_from_zero(1 + term * d)
        c = _away_from_zero(1 + term / c)
        value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


def _away_from_zero(x: float) -> float:
    return x if abs(x) > SMALLEST else SMALLEST


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
    """By bisection in the logarithm: trigamma falls from infinity to zero."""
    low, high = math.log(1e-6), math.log(1e9)
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if trigamma(math.exp(middle)) > y else (low, middle)
    return math.exp(high)
