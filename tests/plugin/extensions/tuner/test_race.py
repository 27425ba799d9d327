"""Sets and regret of eight tactics of known cost, over seeds of a simulated stopwatch."""

import collections
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tuner_runs import (
    ALL,
    ALSO_BEST,
    BEST,
    COST_US,
    MOST,
    ONLY_UNIFORM,
    RAISES,
    SECOND,
    SEEDS,
    SLOW,
    SLOWEST,
    WRONG,
    rounds,
)

from pytest_flashinfer_perf.extensions.tuner.race import FIRST_LOOK, MOST_ROUNDS, Race
from pytest_flashinfer_perf.extensions.tuner.search import NOT_BESIDE, entries
from pytest_flashinfer_perf.extensions.tuner.sets import Contestants

FIT = [name for name in ALL if name not in {WRONG, RAISES}]


def raced(seed, costs=COST_US, kept=(SLOW, SECOND, SLOWEST), calls=None):
    race = Race(kept, rounds(random.Random(seed), costs, calls))
    return race, race.run(ALL, lambda: True)


@pytest.fixture(scope="module")
def races():
    return [raced(seed) for seed in range(SEEDS)]


def test_the_best_set_is_that_of_the_equal_ones(races):
    """At most 5 % of the sets may lack one of the best; none holds one that is 25 % slower."""
    sets = [set(field.best) for _, field in races]
    assert sum(best == {BEST, ALSO_BEST} for best in sets) >= MOST
    assert not any({SLOW, SLOWEST, ONLY_UNIFORM, WRONG, RAISES} & best for best in sets)


@pytest.mark.parametrize("name", [SECOND, SLOW, SLOWEST])
def test_regret_lies_within_its_interval(races, name):
    """Of what a tuner took: the default, the second best, the slowest. Either bound is at 95 %."""
    true = COST_US[name] / COST_US[BEST] - 1
    regrets = [field.regret(name) for _, field in races]
    assert sum(regret.low <= true for regret in regrets) >= MOST
    assert sum(true <= regret.high for regret in regrets) >= MOST - 1
    assert all(regret.low > 0 for regret in regrets)
    assert sum(abs(regret.seen - true) for regret in regrets) / SEEDS < 0.015 * (1 + true)


def test_the_best_has_no_regret_for_sure(races):
    assert sum(field.regret(BEST).low == 0 for _, field in races) >= MOST
    assert all(field.regret(BEST).high < 0.05 for _, field in races)


def test_hopeless_ones_leave_early_and_say_why():
    calls = []
    race, field = raced(3, kept=(SLOW,), calls=calls)
    assert (race.lanes[WRONG].state, race.lanes[RAISES].state) == ("wrong", "fails")
    assert race.lanes[WRONG].why == "output 0: 12 of 16 differ"
    assert not {WRONG, RAISES} & field.times.keys()
    assert race.lanes[SLOWEST].state == "slower"
    assert race.lanes[SLOWEST].why.startswith(f"dropped after {FIRST_LOOK} rounds: ")
    assert calls.count(SLOWEST) == FIRST_LOOK < calls.count(SLOW) <= MOST_ROUNDS
    assert calls.count(WRONG) == calls.count(RAISES) == 1


def test_what_left_comes_back_when_what_was_faster_turns_out_wrong():
    """Its fourth answer is wrong: whatever left because of it may be the best."""
    costs = {**COST_US, ONLY_UNIFORM: 20.0}

    def lying():
        for nth, timed in enumerate(rounds(random.Random(0), costs), start=1):
            yield lambda name, nth=nth, timed=timed: timed(WRONG if (name, nth) == (ONLY_UNIFORM, 4) else name)

    race = Race((SLOW,), lying())
    field = race.run(ALL, lambda: True)
    assert set(field.best) == {BEST, ALSO_BEST}
    assert race.lanes[ONLY_UNIFORM].state == "wrong"


def test_nothing_has_two_turns_in_a_round_when_what_left_comes_back():
    """It left in the first stage, is asked for again in the second, and there what was faster turns out wrong."""
    turns, later = collections.Counter(), []
    costs = {"default": 300e-6, "left": 200e-6, "lies": 100e-6}

    def lying():
        for nth, timed in enumerate(rounds(random.Random(0), costs)):

            def told(name, nth=nth, timed=timed):
                turns[nth, name] += 1
                return timed(WRONG if later and name == "lies" else name)

            yield told

    race = Race(("default",), lying())
    race.run(["left", "lies"], lambda: True)
    assert race.lanes["left"].state == "slower"
    later.append(True)
    race.run(["left", "lies"], lambda: True)
    assert race.field.best == ("left",)
    assert set(turns.values()) == {1}


def test_without_a_budget_the_first_round_is_the_kept_alone():
    race = Race((SLOW,), rounds(random.Random(0)))
    field = race.run(ALL, lambda: False)
    assert field.times.keys() == set(field.best) == {SLOW}
    assert {race.lanes[name].state for name in ALL if name != SLOW} == {"untimed"}


def test_what_has_a_turn_has_two():
    """One round of many tactics can take all of the budget; half of it is kept for the second."""
    calls = []
    race = Race((SLOW,), rounds(random.Random(0), made=calls))
    race.run(ALL, lambda: 7.0 - len(calls))
    turns = {name: len(lane.times) for name, lane in race.lanes.items() if name in FIT}
    assert min(turns[name] for name in FIT if race.lanes[name].state != "untimed") >= FIRST_LOOK
    assert {turns[name] for name in FIT if race.lanes[name].state == "untimed"} == {0}
    assert 2 <= sum(map(bool, turns.values())) < len(FIT)


def in_two_stages(seed, slower_later):
    """Twelve equal answers, then eight of them combined into what is 2 % faster, while the clock drifts."""
    rng, later = random.Random(seed), []

    def drifting():
        while True:
            level = rng.gauss(0, 0.003) + (slower_later if later else 0)
            yield lambda name, level=level: costs[name] * math.exp(level + rng.gauss(0, 0.004))

    alone, combined = [f"alone {nth}" for nth in range(12)], [f"combined {nth}" for nth in range(8)]
    costs = {"default": 130e-6, **dict.fromkeys(alone, 100e-6), **dict.fromkeys(combined, 98e-6)}
    race = Race(("default",), drifting())
    race.run(alone, lambda: True)
    later.append(True)
    race.run([*alone[:8], *combined], lambda: True)
    return race


@pytest.mark.parametrize("slower_later", [0.0, 0.05])
def test_a_clock_that_drifts_between_stages_hides_nothing(slower_later):
    races = [in_two_stages(seed, slower_later) for seed in range(5)]
    assert all(race.field.fastest.startswith("combined") for race in races)
    told = [one for race in races for one in entries(race) if one.state == "slower" and one.regret is None]
    assert {one.why for one in told} <= {NOT_BESIDE}


@pytest.mark.parametrize("seen", [2, 3, 5])
def test_the_best_stays_though_it_is_noisier_than_all_others(seen):
    """Its first rounds may be slow: that all others hardly scatter says little of it."""
    for seed in range(100):
        rng = random.Random(seed)
        noisy = {BEST: (100e-6, 0.03), **{f"other {nth}": (101e-6, 0.005) for nth in range(40)}}
        field = Contestants(
            {name: {nth: us * math.exp(rng.gauss(0, sd)) for nth in range(seen)} for name, (us, sd) in noisy.items()}
        )
        assert field.fastest == BEST or not field.is_slower(BEST, looks=MOST_ROUNDS)


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=6), st.integers(0, 2**32))
def test_a_regret_is_no_less_than_its_lower_bound_whatever_the_times(costs, seed):
    rng = random.Random(seed)
    names = list(map(str, range(len(costs))))
    times = {
        name: {n: cost * math.exp(rng.gauss(0, 0.01)) for n in range(5)}
        for name, cost in zip(names, costs, strict=True)
    }
    field = Contestants(times)
    assert field.fastest == field.best[0]
    regrets = [field.regret(name) for name in names]
    assert all(0 <= regret.low <= regret.high for regret in regrets)
    assert all(field.regret(name).low == 0 for name in field.best)
