"""Tails and quantiles against scipy, over the whole range of what they may be asked."""

import functools
import math
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import special

from pytest_flashinfer_perf.gate import student

LAST_BELOW_HALF = math.nextafter(0.5, 0.0)
INFINITE = math.inf
close = functools.partial(pytest.approx, rel=1e-9, abs=0.0)  # small probabilities are not alike


def logarithmic(low, high):
    return st.floats(math.log(low), math.log(high)).map(math.exp)


dfs = st.one_of(logarithmic(1e-3, 1e20), st.just(INFINITE))
tails = st.one_of(
    logarithmic(1e-300, 0.49), logarithmic(6e-17, 0.49).map(lambda less: min(LAST_BELOW_HALF, 0.5 - less))
)


def scipys_tail(t, df):
    """Not what the centre leaves of a half, so that it has all its digits."""
    if df > 1e3:
        return special.ndtr(-t) if df == INFINITE else special.stdtr(df, -t)
    odds = t / df * t
    return 0.5 * special.betainc(df / 2, 0.5, 1 / (1 + odds)) if odds > 1e-3 else 0.5 - scipys_centre(t, df)


def scipys_centre(t, df):
    """MessageParams zero and this t."""
    odds = t / df * t
    if df == INFINITE:
        return special.erf(t / math.sqrt(2)) / 2
    return 0.5 * special.betainc(0.5, df / 2, odds / (1 + odds)) if odds <= 1 else 0.5 - scipys_tail(t, df)


@given(logarithmic(1e-12, 1e100), dfs)
@example(5.0, 1.001 * student.MANY)
@example(30.0, 1.001 * student.MANY)
@example(math.exp(2), math.exp(4))
@example(math.exp(-17.875), 1.0)
def test_students_tail_is_scipys(t, df):
    assert student.t_tail_probability(t, df) == close(scipys_tail(t, df), abs=1e-290)
    assert student.t_tail_probability(-t, df) == close(1 - scipys_tail(t, df))
    assert student.t_tail_probability(0.0, df) == 0.5


@given(tails, dfs)
@example(LAST_BELOW_HALF, 10.0)  # did not end in Newton's steps, for any degrees of freedom
@example(0.4999999999999, 999.0)  # nor here from 999 on
@example(1e-300, 1.0)
@example(1e-300, INFINITE)
@example(LAST_BELOW_HALF, INFINITE)
@example(LAST_BELOW_HALF, 1e-3)
def test_a_quantile_has_this_tail(tail, df):
    t = student.t_quantile(tail, df)
    assert student.t_quantile(0.5, df) == 0
    assert 0 < t < math.inf
    if t == pytest.approx(sys.float_info.max):
        assert student.t_tail_probability(t, df) > tail, "it lies beyond all floats"
    elif tail < 0.25 or t > 1e150:
        assert student.t_tail_probability(t, df) == close(tail)
    else:
        assert scipys_centre(t, df) == close(0.5 - tail)


def test_a_quantile_is_found_in_few_evaluations(monkeypatch):
    """Tails far from all floats and next to a half included, and where a function says nothing of where its root is."""
    monkeypatch.setattr(student, "_beta", counted := Counted(student._beta))
    for tail in (1e-300, 1e-9, 0.2, 0.49, 0.4999999999999, LAST_BELOW_HALF):
        for df in (1e-3, 0.7, 8.0, 9999.0):
            counted.calls = 0
            student.t_quantile.__wrapped__(tail, df)
            assert counted.calls < 2 * student.HALVINGS
    steps = Counted(lambda _: -1.0 if len(steps.places) % 2 else 1.0)
    assert math.isfinite(student._root(steps, 0.0))
    assert steps.calls <= 2 * student.HALVINGS + 2


class Counted:
    def __init__(self, function):
        self.function, self.calls, self.places = function, 0, []

    def __call__(self, *arguments):
        self.calls += 1
        self.places.append(arguments)
        return self.function(*arguments)


@given(logarithmic(1e-6, 1e9))
def test_derivatives_of_log_gamma_are_scipys(x):
    assert student.digamma(x) == pytest.approx(special.digamma(x), rel=1e-9, abs=1e-9)
    assert student.trigamma(x) == close(special.polygamma(1, x))
    assert student.inverse_trigamma(student.trigamma(x)) == close(x)
