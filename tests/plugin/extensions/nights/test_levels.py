"""Changes of level in a series; a spike is none."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.extensions.nights.levels import levels


def changes(values, least):
    [only] = levels(np.array([values], dtype=np.float64), [least])
    return list(only.found)


def series(rng, *levels, sd=0.01):
    return [level + rng.gauss(0, sd) for level, count in levels for _ in range(count)]


def test_a_step_is_found_within_five_points_and_noise_is_no_step():
    rng = random.Random(8)
    found = false = 0
    for _ in range(200):
        steps = changes(series(rng, (0.0, 40), (0.03, 5)), least=0.0)
        found += any(abs(change.at - 40) <= 3 for change in steps)
        false += len(changes(series(rng, (0.0, 100)), least=0.0))
    assert found >= 180
    assert false <= 20  # of 20,000 points


@given(st.integers(0, 2**32), st.integers(0, 39), st.floats(0.05, 3.0), st.sampled_from([-1, 1]))
def test_a_single_spike_is_not_a_change(seed, at, height, sign):
    values = series(random.Random(seed), (0.0, 40), sd=0.002)
    values[at] += sign * height
    assert changes(values, least=0.01) == []


@given(st.integers(0, 2**32), st.floats(0.002, 0.006), st.integers(5, 30))
def test_a_drift_is_one_change_though_each_of_its_steps_may_be_small(seed, slope, start):
    rng = random.Random(seed)
    values = [slope * max(0, night - start) + rng.gauss(0, 0.004) for night in range(60)]
    [change] = changes(values, 0.02)
    assert change.is_drift
    assert change.after - change.before == pytest.approx(slope * (60 - start), rel=0.35)


@given(st.integers(0, 2**32), st.integers(6, 25), st.integers(6, 25))
def test_two_steps_in_one_direction_are_two_changes(seed, first, second):
    found = changes(series(random.Random(seed), (0.0, first), (0.03, second), (0.06, 15), sd=0.003), 0.01)
    assert [change.is_drift for change in found] == [False, False]


def test_levels_and_their_order():
    values = [0.0, 0.001] * 5 + [0.5, 0.501] * 5 + [0.2, 0.201] * 5
    assert [(change.at, round(change.after - change.before, 2)) for change in changes(values, 0.02)] == [
        (10, 0.5),
        (20, -0.3),
    ]
    assert changes(values, 0.4) == changes(values, 0.02)[:1]


@pytest.mark.parametrize("values", [[], [1.0] * 5, [1.0, 9.0, 1.0, 9.0, 1.0], [1.0] * 50])
def test_what_is_too_short_or_never_changed_says_nothing(values):
    assert changes(values, 0.0) == []
