"""How many pairs a case gets: simulated processes, and what was asked of each pair."""

import math
import random

import pytest
import two_speeds
from made import row, run
from verdicts import rules

from pytest_flashinfer_perf.extensions.bisect.pairs import PairSchedule
from pytest_flashinfer_perf.gate import confirmation
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
    counts = PairSchedule().follow(machine.pair, RULES).counts
    assert (counts[Verdict.SAME], counts[Verdict.FASTER]) == (8 - faster, faster)
    assert len(machine.asked) == 3


def test_a_slow_case_is_confirmed_by_two_more_pairs():
    machine = Machine(c0=lambda _: 0.1)
    judgement = PairSchedule().follow(machine.pair, RULES)
    assert [judged.name for judged in judgement.having(Verdict.SLOWER)] == ["c0"]
    assert machine.asked[3:] == [["c0"], ["c0"]]
    assert "measured again: +10." in judgement.cases[0].sentence


def test_a_case_that_was_slow_for_a_while_is_not_confirmed():
    machine = Machine(c0=lambda nth: 0.1 if nth < 3 else 0.0)
    judgement = PairSchedule().follow(machine.pair, RULES)
    [judged] = judgement.having(Verdict.AMBIGUOUS)
    assert (judged.name, judged.reason) == ("c0", "two-speeds")
    assert judgement.exit_code == 0


def test_ambiguous_cases_get_more_pairs_and_others_do_not():
    machine = Machine(sd=0.03, info={"placements": []})
    PairSchedule(pairs=5, most=8).follow(machine.pair, RULES)
    assert 8 <= len(machine.asked) <= 10  # a suspect at the eighth has two more
    assert len(machine.asked[0]) > len(machine.asked[-1]) > 0


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_when_time_is_up_what_there_is_is_judged(pairs):
    machine = Machine(c0=lambda _: 0.1)
    judgement = PairSchedule().follow(machine.pair, RULES, more=lambda: len(machine.asked) < pairs)
    assert len(judgement.base) == pairs
    assert judgement.having(Verdict.SLOWER)


def test_cases_that_cannot_be_judged_get_no_more_pairs():
    def pair(_nth, _wanted):
        asked.append(1)
        return run(row("gone")), run(row("new"))

    asked = []
    assert PairSchedule().follow(pair, RULES).exit_code == 2
    assert len(asked) == 3


def test_pairs_go_on_where_they_disagree_about_a_suspect():
    def measure(nth, _wanted):
        head = (110.0, 110.0, 110.0, 103.0, 110.1, 110.0, 110.2)[min(nth, 6)] + 0.01 * nth
        return run(row(us=100.0 + 0.01 * nth), source=f"b{nth}"), run(row(us=head), source=f"h{nth}")

    judgement = PairSchedule(3, 6).follow(measure, rules(paired=True))
    [judged] = judgement.cases
    assert len(judgement.base) == 3 + confirmation.MOST
    assert judged.sentence.endswith("measured again: +3.00 %, +10.10 %, +10.00 %, +10.19 %")


# Pairs of processes, some of them busy.


BUSY = {"seconds": 1.0, "cores": 2, "waited": 0.7, "taken": 0.8, "load": 6.2}
QUIET = {"seconds": 1.0, "cores": 2, "waited": 0.0, "taken": 0.0, "load": 0.0}
ON_CPU = {"instrument": "wall", "gpu_uuid": None, "cuda_graph": False, "bound": None}


def timed(us, contention=QUIET):
    """A row by the host's clock."""
    return row("own", us=us, **ON_CPU, contention=contention)


def plan(heads):
    """The judgement of pairs whose heads are these, in order and then the last one on and on; how many there were."""
    made = []

    def measure(nth, _wanted):
        made.append(nth)
        us, how = heads[min(nth, len(heads) - 1)]
        return run(timed(100.0 + 0.01 * nth), source=f"b{nth}"), run(timed(us, contention=how), source=f"h{nth}")

    return PairSchedule(3, 6).follow(measure, rules(paired=True)), len(made)


def test_a_busy_pair_is_replaced_by_another():
    judgement, made = plan([(300.0, QUIET), (9000.0, BUSY), (300.1, QUIET), (300.2, QUIET)])
    [judged] = judgement.cases
    assert (judged.verdict, judged.case.left_out) == (Verdict.SLOWER, 1)
    assert made == len(judged.case.base) + 1


def test_pairs_end_where_the_machine_stays_busy():
    judgement, made = plan([(9000.0, BUSY)])
    assert (judgement.cases[0].reason, made) == ("busy", 6)


def test_a_suspect_that_only_busy_pairs_could_confirm_is_not_confirmed():
    judgement, made = plan([(300.0, QUIET)] * 3 + [(300.0, BUSY)])
    [judged] = judgement.cases
    assert (judged.verdict, judged.reason) == (Verdict.AMBIGUOUS, "busy")
    assert judged.sentence == "not confirmed, measured again while others used this machine"
    assert made == 6 + confirmation.FEWEST


# Error rates.


@pytest.mark.parametrize("slow", [0.0, 0.14])
def test_identical_code_with_two_speeds_seldom_fails_a_run(slow):
    """As in 3 of 22 processes: without that each process has to show it, 1 of 22 runs failed."""
    assert two_speeds.rates(two_speeds.gate, slow, 0.0, runs=60).failed <= 1
    for compare in (two_speeds.WAYS["`ab`"], two_speeds.WAYS["`compare`, five a side"]):
        assert two_speeds.rates(compare, 0.5, 0.0, runs=15).failed <= 1


def test_twice_as_much_is_found_in_spite_of_two_speeds():
    assert two_speeds.rates(two_speeds.gate, 0.14, 1.0, runs=20).slower >= 0.9
    assert two_speeds.rates(two_speeds.WAYS["`ab`"], 0.14, 1.0, runs=10).slower >= 0.9
