"""How many pairs a case gets: simulated processes, and what was asked of each pair."""

import math
import random

import pytest
from made import row, run

from pytest_flashinfer_perf.gate.pairs import PairPlan
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Rules, Verdict

RULES = Rules(Thresholds((("*", {"slower": 0.02}),)), paired=True)


class Machine:
    """Cases that vary by `sd`; `slower` says of each by how much it is in pair n."""

    def __init__(self, sd=0.001, cases=8, info=None, **slower):
        self.info = info or {}
        self.rng, self.sd, self.names = random.Random(4), sd, [f"c{i}" for i in range(cases)]
        self.slower = slower
        self.asked = []

    def pair(self, nth, wanted):
        names = self.names if wanted is None else sorted(wanted)
        self.asked.append(names)
        return self.side(names, lambda _: 0.0), self.side(names, lambda name: self.slower.get(name, lambda _: 0.0)(nth))

    def side(self, names, change):
        return run(*(row(n, us=100 * math.exp(change(n) + self.rng.gauss(0, self.sd)), **self.info) for n in names))


@pytest.mark.parametrize(("change", "faster"), [(0.0, 0), (-0.1, 1)])
def test_what_is_certain_after_three_pairs_gets_no_more(change, faster):
    machine = Machine(c0=lambda _: change)
    counts = PairPlan().follow(machine.pair, RULES).counts
    assert (counts[Verdict.SAME], counts[Verdict.FASTER]) == (8 - faster, faster)
    assert len(machine.asked) == 3


def test_a_slow_case_is_confirmed_by_two_more_pairs():
    machine = Machine(c0=lambda _: 0.1)
    judgement = PairPlan().follow(machine.pair, RULES)
    assert [judged.name for judged in judgement.having(Verdict.SLOWER)] == ["c0"]
    assert machine.asked[3:] == [["c0"], ["c0"]]
    assert "measured again: +10." in judgement.cases[0].sentence


def test_a_case_that_was_slow_for_a_while_is_not_confirmed():
    machine = Machine(c0=lambda nth: 0.1 if nth < 3 else 0.0)
    judgement = PairPlan().follow(machine.pair, RULES)
    [judged] = judgement.having(Verdict.AMBIGUOUS)
    assert (judged.name, judged.reason) == ("c0", "two-speeds")
    assert judgement.exit_code == 0


def test_ambiguous_cases_get_more_pairs_and_others_do_not():
    machine = Machine(sd=0.03, info={"placements": []})
    PairPlan(pairs=5, most=8).follow(machine.pair, RULES)
    assert 8 <= len(machine.asked) <= 10  # a suspect at the eighth has two more
    assert len(machine.asked[0]) > len(machine.asked[-1]) > 0


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_when_time_is_up_what_there_is_is_judged(pairs):
    machine = Machine(c0=lambda _: 0.1)
    judgement = PairPlan().follow(machine.pair, RULES, more=lambda: len(machine.asked) < pairs)
    assert len(judgement.base) == pairs
    assert judgement.having(Verdict.SLOWER)


def test_cases_that_cannot_be_judged_get_no_more_pairs():
    def pair(_nth, _wanted):
        asked.append(1)
        return run(row("gone")), run(row("new"))

    asked = []
    assert PairPlan().follow(pair, RULES).exit_code == 2
    assert len(asked) == 3
