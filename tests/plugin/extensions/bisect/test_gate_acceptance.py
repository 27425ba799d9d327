"""The simulations of tests/acceptance/gate_acceptance.py, smaller; evidence/gate-simulated.md has them at full size."""

import random

import gate_acceptance as simulated
import pytest

NOISES = {
    "H200's noise": (simulated.table(40), "2%"),
    "H200's noise, a small threshold": (simulated.table(40), "0.5%"),
    "sd 0.3 %": (simulated.even(40, 0.003), "0.5%"),
}
RUNS = {simulated.five_pairs: 10, simulated.as_ab: 4}
EITHER = pytest.mark.parametrize("how", RUNS, ids=lambda how: how.__name__)


@EITHER
@pytest.mark.parametrize("noise", NOISES)
def test_identical_code_is_called_the_same(how, noise):
    """At most 1 % of cases; and 5 % of runs, which of so few may by chance be one."""
    kernels, slower = NOISES[noise]
    of_cases, _, of_runs = simulated.false_alarms(8, RUNS[how], kernels, simulated.rules(slower), how)
    assert of_cases <= 0.01
    assert of_runs * RUNS[how] <= 1


@EITHER
def test_one_percent_is_found_and_few_discoveries_are_false(how):
    kernels, held_to = simulated.even(60, 0.003), simulated.rules("0.5%")
    found, false = simulated.power(8, RUNS[how], kernels, held_to, how, slower=0.01, share=0.1)
    assert found >= 0.95
    assert false <= 0.07


@EITHER
@pytest.mark.parametrize(("slower", "least"), [(0.03, 0.95), (0.10, 1.0)])
def test_what_is_slower_on_an_h200_is_found(how, slower, least):
    found, false = simulated.power(8, 5, simulated.table(40), simulated.rules(), how, slower=slower, share=0.2)
    assert found >= least
    assert false <= 0.07


def test_a_lower_clock_is_never_slower():
    assert simulated.lower_clock(8, 10) == 0


def test_a_case_that_is_gone_never_passes():
    assert simulated.passes_of_damaged(8, 200) == 0


def test_cases_are_done_early_when_they_are_certain():
    _, pairs = simulated.planned(simulated.table(50), random.Random(8), simulated.rules())
    assert 3 <= pairs < 4
