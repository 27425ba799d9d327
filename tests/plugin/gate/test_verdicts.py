"""Verdicts on a change between made-up rows: in time and in cycles, above thresholds and noise, confirmed or not."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import plain, row, run
from verdicts import rules, verdict

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.verdict import Verdict


def jittered(us, seed, sd=0.001, n=5):
    rng = random.Random(seed)
    return [us * math.exp(rng.gauss(0, sd)) for _ in range(n)]


def bare(us, **said):
    """Without placements, so that nobody knows how far processes lie apart."""
    return row(us=us, placements=[], **said)


def cycles(us, ghz=1.8, bound="compute", clock=1.0):
    counted = (us + 3.5) * ghz * 1e3
    return row(us=us / clock, bound=bound, cycles=counted, sm_ghz=ghz * clock)


SAME = ("SAME", "within-threshold", 0)
SLOWER, FASTER = ("SLOWER", "slower", 1), ("FASTER", "faster", 0)
MAY_BE_NOISE, TIME_ONLY = ("AMBIGUOUS", "not-significant", 2), ("AMBIGUOUS", "time-only", 2)
CANNOT_SEE = ("AMBIGUOUS", "cannot-see", 2)
ONE_AGAINST_ONE = {
    "alike": (row(), row(), {}, SAME),
    "below the threshold": (row(stddev=0.005), row(us=101.0, stddev=0.005), {"slower": 0.02}, SAME),
    "above it": (row(stddev=0.005), row(us=110.0, stddev=0.005), {"slower": 0.02}, SLOWER),
    "faster": (row(stddev=0.005), row(us=90.0, stddev=0.005), {"slower": 0.02}, FASTER),
    "slower within the noise": (bare(100.0), bare(105.0), {}, MAY_BE_NOISE),
    "faster within the noise": (bare(100.0), bare(95.0), {}, MAY_BE_NOISE),
    "of no known bound": (bare(100.0, bound=None), bare(105.0, bound=None), {}, MAY_BE_NOISE),
    "of a bound that is guessed": (bare(100.0, bound="memory?"), bare(95.0, bound="memory?"), {}, MAY_BE_NOISE),
    "too noisy to be the same": (plain(us=100.0), plain(us=101.0), {}, CANNOT_SEE),
    "too noisy, strictly": (plain(us=100.0), plain(us=101.0), {"strict": True}, CANNOT_SEE),
    "below the floor": (row(us=1.40, stddev=0), row(us=1.49, stddev=0), {}, SAME),
    "above a lower floor": (row(us=1.40, stddev=0), row(us=1.49, stddev=0), {"floor_us": 0.01}, SLOWER),
    "at a lower clock": (cycles(100.0), cycles(100.0, clock=0.85), {}, TIME_ONLY),
    "short, at a lower clock": (cycles(3.5), cycles(3.5, clock=0.85), {"floor_us": 0.0}, TIME_ONLY),
    "memory-bound in as many cycles": (cycles(100, bound="memory"), cycles(100, 1.8, "memory", 0.9), {}, TIME_ONLY),
    "of a moved checkout": (row(), {**row(), "fullname": "elsewhere/test_decode.py::test_decode[b16-fa3]"}, {}, SAME),
}


@pytest.mark.parametrize(
    ("before", "after", "held_to", "expected"), ONE_AGAINST_ONE.values(), ids=list(ONE_AGAINST_ONE)
)
def test_one_run_against_one(before, after, held_to, expected):
    assert verdict(before, after, rules(**held_to)) == expected


def test_another_clock_is_said_to_be():
    assert list(words.clock_moved(1.8, 1.53)) == ["SM clock 1.80 -> 1.53 GHz"]
    assert list(words.clock_moved(1.8, 1.79)) == []


def test_a_compute_bound_case_is_judged_in_cycles_and_a_memory_bound_one_in_time():
    for bound, domain in (("compute", "cycles"), ("memory", "time")):
        judgement = judge([run(cycles(100, bound=bound))], [run(cycles(110, bound=bound))], rules())
        [judged] = judgement.having(Verdict.SLOWER)
        assert judged.effects[0].replicates.domain == domain
        assert {effect.replicates.domain for effect in judged.effects[:2]} == {"cycles", "time"}


def test_a_short_compute_bound_kernel_is_judged_in_its_own_cycles():
    """Stamps take as long as the kernel: three percent of it are one and a half of the cycles between them."""
    base, head = ([run(cycles(us)) for us in jittered(us, seed, 1e-4)] for us, seed in ((3.5, 1), (3.605, 2)))
    [judged] = judge(base, head, rules(paired=True, slower=0.02, floor_us=0.0)).cases
    assert judged.effects[0].replicates.domain == "cycles"
    assert judged.effects[0].change == pytest.approx(math.log(1.03), abs=0.001)
    assert judged.verdict is Verdict.SLOWER


def test_a_memory_bound_case_far_from_memorys_roof_is_judged_in_cycles():
    def domain(percent, us=100.0):
        counted = {**cycles(us, bound="memory")}
        counted["extra_info"]["sol_pct"] = percent
        [judged] = judge([run(counted)], [run(counted)], rules()).cases
        return judged.effects[0].replicates.domain

    assert (domain(30), domain(90), domain(30, us=5.0)) == ("cycles", "time", "time")


def test_a_compute_bound_case_whose_time_stays_is_ambiguous():
    slower = row(us=100.0, bound="compute", cycles=210e3, sm_ghz=2.0)
    base = [run(row(us=us, bound="compute", cycles=186e3, sm_ghz=1.8)) for us in jittered(100, 1)]
    head = [run({**slower}) for _ in base]
    [judged] = judge(base, head, rules(paired=True, slower=0.05)).cases
    assert (judged.verdict, judged.reason) == (Verdict.AMBIGUOUS, "cycles-only")


def test_plain_benchmarks_are_matched_by_fullname():
    judgement = judge([run(plain("a"), plain("b"))], [run(plain("b"), plain("a"))], rules())
    assert sorted(judged.name for judged in judgement.cases if judged.compared) == ["t.py::a", "t.py::b"]


@pytest.mark.parametrize(
    ("asked", "facts", "broken", "code"),
    [
        ({"min_tflops": 500.0}, {"tflops": 480.0}, True, 1),
        ({"min_tflops": 500.0}, {"tflops": 520.0}, False, 0),
        ({"min_tflops": 500.0}, {"tflops": None}, False, 2),
        ({"min_sol_pct": 80.0}, {"sol_pct": 79.0}, True, 1),
        ({"min_sol_pct": 80.0}, {"sol_pct": 81.0}, False, 0),
    ],
)
def test_absolutes_hold_whatever_it_was_before(asked, facts, broken, code):
    base, head = [run(row(**facts))], [run(row(**facts))]
    judgement = judge(base, head, rules(**asked))
    assert judgement.exit_code == code
    assert any(not b.unknown for b in judgement.cases[0].broken) == broken
    assert judge([run(row("other/a-fa3"))], head, rules(**asked)).exit_code == (1 if broken else 2)


def test_the_worst_come_first_and_are_counted():
    cases = {"a": 100.0, "b": 130.0, "c": 110.0, "d": 80.0}
    base = run(*(row(name) for name in cases), row("gone"))
    head = run(*(row(name, us=us) for name, us in cases.items()), row("new"))
    judgement = judge([base], [head], rules())
    assert [judged.name for judged in judgement.cases] == ["b", "c", "gone", "d", "a", "new"]
    assert judgement.exit_code == 1


medians = st.floats(1.0, 1e4)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(medians, medians), min_size=1))
def test_the_same_files_give_the_same_verdicts_in_any_order(cases):
    base = [row(name, us=before) for name, (before, _) in cases.items()]
    head = [row(name, us=after) for name, (_, after) in cases.items()]
    one = judge([run(*base)], [run(*head)], rules())
    other = judge([run(*base[::-1])], [run(*head[::-1])], rules())
    assert {j.name: (j.verdict, j.threshold, j.detectable) for j in one.cases} == {
        j.name: (j.verdict, j.threshold, j.detectable) for j in other.cases
    }
    assert one.exit_code == other.exit_code
