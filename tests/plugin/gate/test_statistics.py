"""What verdicts rest on: variances, pools of them, false discoveries."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.gate import effects, noise
from pytest_flashinfer_perf.gate.effects import Effect, Replicates
from pytest_flashinfer_perf.gate.noise import Noise
from pytest_flashinfer_perf.rows.scatter import QUIETEST


def drawn(sds, processes, seed=1):
    rng = random.Random(seed)
    return [(noise.variance([rng.gauss(0, sd) for _ in range(processes)]), processes - 1.0) for sd in sds]


def test_cases_that_vary_alike_share_what_they_know():
    pooled = noise.pooled(drawn([0.003] * 200, 5))
    assert pooled.sd == pytest.approx(0.003, rel=0.1)
    assert pooled.df > 50


def test_cases_that_vary_unlike_believe_themselves():
    pooled = noise.pooled(drawn([0.001, 0.003, 0.01, 0.03] * 50, 5))
    assert 0.001 < pooled.sd < 0.02
    assert pooled.df < 4
    own = pooled.blended(0.03**2, 4)
    assert own.sd > 0.02
    assert 2 < noise.pooled(drawn([0.003, 0.006] * 100, 5)).df < 20, "and a little unlike, a little more"


def test_few_cases_are_not_pooled():
    assert noise.pooled(drawn([0.003] * 4, 5)) is None
    assert noise.pooled([(1e-6, 0.0)] * 50) is None


def test_agreement_beyond_a_clocks_ticks_is_not_believed():
    assert noise.variance([1.0, 1.0, 1.0]) == pytest.approx(1e-4**2)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=20))
def test_variance_is_that_of_the_statistics_module(values):
    assert noise.variance(values) == pytest.approx(max(statistics.variance(values), QUIETEST**2), rel=1e-6)


@given(st.lists(st.floats(0, 1), max_size=30), st.floats(0.01, 0.2))
def test_benjamini_hochberg_is_its_definition(p_values, q):
    rejected = effects.benjamini_hochberg(p_values, q)
    m = len(p_values)
    k = max((k for k in range(1, m + 1) if sorted(p_values)[k - 1] <= q * k / m), default=0)
    assert rejected == [k > 0 and p <= sorted(p_values)[k - 1] for p in p_values]


def replicates(before, after, **said):
    return Replicates("time", "memory", tuple(before), tuple(after), **{"paired": False, **said})


def test_pairs_are_free_of_what_both_sides_share():
    drift = [100.0, 120.0, 90.0, 105.0]
    paired = replicates(drift, [1.02 * x for x in drift], paired=True)
    assert paired.variance == pytest.approx(QUIETEST**2 / effects.PAIR)
    assert paired.change == pytest.approx(math.log(1.02))
    assert replicates(drift, [1.02 * x for x in drift]).variance > 0.1**2


def test_without_replicates_what_is_assumed_decides():
    [effect] = effects.effects([replicates([100.0], [101.0], within=0.003)])
    assert effect.noise.source == "assumed"
    assert effect.noise.variance == pytest.approx(noise.ASSUMED["memory"] ** 2 + 0.003**2)
    assert effect.error == pytest.approx(math.sqrt(2 * effect.noise.variance))


def test_what_it_sees_it_finds():
    """Slowdowns of the size that is called detectable are significant in 95 of 100 draws."""
    rng = random.Random(3)
    known = Noise(0.003**2, 1e6, "pooled")
    size = Effect(replicates([1.0] * 5, [1.0] * 5), known).detectable(0.0, cases=100)
    found = 0
    for _ in range(1000):
        after = [math.exp(size + rng.gauss(0, 0.003)) for _ in range(5)]
        before = [math.exp(rng.gauss(0, 0.003)) for _ in range(5)]
        found += Effect(replicates(before, after), known).p(1) <= effects.Q_SLOWER / 100
    assert 930 <= found <= 970
