"""Student's t distribution and its relatives: tails, quantiles, derivatives of log gamma.

scipy has them all, and would weigh more than everything else that a comparison needs; the tests hold these to it. Each
loop has a bound, whatever numbers come. What may be anywhere between zero and infinity is searched for in its
logarithm, as deep as floats go.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from statistics import NormalDist

MANY, ENDLESS = 1e4, 1e18  # degrees of freedom: t is turned into a normal deviate, t is one
FARTHEST = 4000.0  # the square of a normal deviate above which no float says how little lies
CENTRE = 0.25  # a tail larger than this is known best by what it lacks to a half
HIGHEST = math.log(sys.float_info.max)
TINY = sys.float_info.min
TERMS, AGREES = 1000, 1e-15  # of a continued fraction
HALVINGS = 80  # of an interval: there is no float between its ends then, nor after as many of Ridders's steps
LARGE = 8  # enough for an asymptotic series


@functools.lru_cache(maxsize=4096)
def t_tail_probability(t: float, df: float) -> float:
    """The probability of more than `t`: Student's with `df` degrees of freedom, the normal one with infinitely many."""
    if t == 0.0:
        return 0.5
    log_t = math.log(abs(t))
    tail = _tail(log_t, df) if log_t > 0 else 0.5 - _centre(log_t, df)
    return tail if t > 0 else 1.0 - tail


@functools.lru_cache(maxsize=4096)
def t_quantile(tail: float, df: float) -> float:
    """The t above which lies this share, at most a half, of the distribution; of those beyond all floats the largest.

    It is at least the normal distribution's.
    """
    if tail == 0.5:
        return 0.0
    low = math.log(-NormalDist().inv_cdf(tail)) - 1e-9
    if tail < CENTRE:
        return math.exp(_root(lambda log_t: math.log(tail) - math.log(_tail(log_t, df) or TINY), low))
    return math.exp(_root(lambda log_t: math.log(_centre(log_t, df)) - math.log(0.5 - tail), low))


def _tail(log_t: float, df: float) -> float:
    """The probability above this t."""
    if df > MANY:
        return 0.5 * math.erfc(_normal_deviate(log_t, df) / math.sqrt(2))
    log_odds = 2 * log_t - math.log(df)
    return 0.5 * _beta(-_log1p_exp(log_odds), -_log1p_exp(-log_odds), df / 2, 0.5)


def _centre(log_t: float, df: float) -> float:
    """The probability between zero and this t."""
    if df > MANY:
        return 0.5 * math.erf(_normal_deviate(log_t, df) / math.sqrt(2))
    log_odds = 2 * log_t - math.log(df)
    return 0.5 * _beta(-_log1p_exp(-log_odds), -_log1p_exp(log_odds), 0.5, df / 2)


def _normal_deviate(log_t: float, df: float) -> float:
    """The normal deviate with the tail of this t, by Hill's expansion for many degrees of freedom."""
    if df > ENDLESS:
        return math.exp(min(log_t, math.log(FARTHEST) / 2))
    less = df - 0.5
    square = min(FARTHEST, less * _log1p_exp(2 * log_t - math.log(df)))
    scale = 48 * less * less
    second = ((4 * square + 33) * square + 240) * square + 855
    return math.sqrt(square) * (1 + (square + 3) / scale - second / (10 * scale * (scale + 0.8 * square**2 + 100)))


def _log1p_exp(x: float) -> float:
    """The logarithm of 1 + e^x, for any x."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _root(rising: Callable[[float], float], low: float) -> float:
    """Find the zero of a rising function above `low` by Ridders's method; at most the logarithm of the largest float.

    Each step halves the interval at least.
    """
    high, root = HIGHEST, low
    below, above = rising(low), rising(high)
    for _ in range(HALVINGS if above > 0 else 0):
        middle = (low + high) / 2
        between = rising(middle)
        if between == 0:
            return middle
        before, root = root, middle - (middle - low) * between / math.sqrt(between**2 - below * above)
        if abs(root - before) <= AGREES * max(1.0, abs(root)):
            return root
        for place, value in ((middle, between), (root, rising(root))):
            if value < 0 and place > low:
                low, below = place, value
            elif value >= 0 and place < high:
                high, above = place, value
    return root if above > 0 else high


def _last_where(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The place between these two up to which it holds, by bisection."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high


def _beta(log_x: float, log_rest: float, a: float, b: float) -> float:
    """The regularised incomplete beta function of x by the logarithms of x and 1 - x.

    It is taken on the side where its continued fraction converges fast.
    """
    x = math.exp(log_x)
    if x > (a + 1) / (a + b + 2):
        return 1.0 - _beta(log_rest, log_x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * log_x + b * log_rest
    return math.exp(log_front) / (a * _fraction(x, a, b))


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's way to evaluate 1 + d1 / (1 + d2 / (1 + ...))."""
    value, c, d = 1.0, 1.0, 0.0
    for i in range(1, TERMS):
        m = i // 2
        if i % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + term * d or TINY)
        c = 1 + term / c or TINY
        value *= c * d
        if abs(c * d - 1) < AGREES:
            break
    return value


def digamma(x: float) -> float:
    """The derivative of log gamma, of an x above zero."""
    small = [x + n for n in range(LARGE) if x + n < LARGE]
    large = x + len(small)
    y = 1 / (large * large)
    series = math.log(large) - 0.5 / large - y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y / 240)))
    return series - math.fsum(1 / one for one in small)


def trigamma(x: float) -> float:
    """The derivative of digamma, of an x above zero."""
    small = [x + n for n in range(LARGE) if x + n < LARGE]
    large = x + len(small)
    y = 1 / (large * large)
    series = 1 / large + y / 2 + y / large * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y / 30)))
    return series + math.fsum(1 / (one * one) for one in small)


def inverse_trigamma(y: float) -> float:
    """The x of this trigamma, which falls from infinity to zero; between a millionth and a milliard."""
    return math.exp(_last_where(lambda log_x: trigamma(math.exp(log_x)) > y, math.log(1e-6), math.log(1e9)))
