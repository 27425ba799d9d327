"""Rows of a busy machine and of too few calls decide nothing; several processes of a quiet one do by themselves."""

import math
import random

import pytest
from made import placements, row, run
from verdicts import rules, verdict

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.verdict import Verdict

BUSY = {"seconds": 1.0, "cores": 2, "waited": 0.7, "taken": 0.8, "load": 6.2}
QUIET = {"seconds": 1.0, "cores": 2, "waited": 0.0, "taken": 0.0, "load": 0.0}
ON_CPU = {"instrument": "wall", "gpu_uuid": None, "cuda_graph": False, "bound": None}


def timed(us=100.0, *, contention=QUIET, case="own", **more):
    """A row by the host's clock."""
    return row(case, us=us, **{**ON_CPU, "contention": contention, **more})


@pytest.mark.parametrize("us", [1.0, 100.0, 200.0, 30_000.0])
@pytest.mark.parametrize(("sides", "where"), [((QUIET, BUSY), "this run"), ((BUSY, QUIET), "the baseline")])
def test_a_busy_machine_is_not_judged_whatever_the_change(us, sides, where):
    before, after = sides
    judgement = judge([run(timed(contention=before))], [run(timed(us, contention=after))], rules())
    [judged] = judgement.cases
    assert (judged.verdict, judged.reason, judgement.exit_code) == (Verdict.AMBIGUOUS, "busy", 2)
    sentence = (
        f"others used this machine: load 6 on 2 cores, in {where} of 2026-11-20 12:00 UTC; measure again when nothing"
    )
    assert judged.sentence.startswith(sentence)


def test_a_quiet_machine_and_an_unknown_one_are_judged():
    for known in (QUIET, None):
        assert verdict(timed(contention=known), timed(300.0, contention=known)) == ("SLOWER", "slower", 1)


def test_a_little_load_widens_the_noise():
    little = {**QUIET, "taken": 0.2}
    quiet, loaded = (judge([run(timed())], [run(timed(contention=one))], rules()).cases[0] for one in (QUIET, little))
    assert loaded.detectable > 1.2 * quiet.detectable
    assert verdict(timed(), timed(150.0)) == ("SLOWER", "slower", 1)
    assert verdict(timed(), timed(150.0, contention=little)) == ("AMBIGUOUS", "not-significant", 2)


def test_a_load_of_one_side_of_several_processes_widens_the_noise_and_that_of_both_does_not():
    def detected(*loads):
        base, head = (
            [run(timed(100.0 + nth, contention={**QUIET, "taken": load}), source=f"{load}{nth}") for nth in range(5)]
            for load in loads
        )
        return judge(base, head, rules()).cases[0].detectable

    assert detected(0.0, 0.2) > 1.5 * detected(0.2, 0.2) == pytest.approx(1.5 * detected(0.0, 0.0))


def test_what_a_busy_machine_measured_is_no_evidence_about_other_cases():
    many = [timed(case=f"quiet{n}") for n in range(3)]
    base = run(*many, *(timed(case=f"busy{n}") for n in range(30)))
    noticed = timed(135.0, case="quiet0")
    head = run(noticed, *many[1:], *(timed(1e5, case=f"busy{n}", contention=BUSY) for n in range(30)))
    counts = judge([base], [head], rules()).counts
    assert (counts[Verdict.SLOWER], counts[Verdict.AMBIGUOUS]) == (0, 33)


@pytest.mark.parametrize(
    ("rounds", "processes", "few"), [((4, 30), 1, True), ((30, 4), 1, True), ((5, 5), 1, False), ((3, 3), 2, False)]
)
def test_fewer_than_five_calls_decide_nothing(rounds, processes, few):
    base, head = (
        [run(timed(us, rounds=count), source=str((us, nth))) for nth in range(processes)]
        for us, count in zip((100.0, 1000.0), rounds, strict=True)
    )
    [judged] = judge(base, head, rules()).cases
    assert (judged.reason == "few-calls", judged.verdict is Verdict.SLOWER) == (few, not few)
    if few:
        assert "has 4 timed calls, and fewer than 5 decide nothing" in judged.sentence


@pytest.mark.parametrize(("paired", "before"), [(False, (100e-6, 101e-6)), (True, (100e-6,))])
def test_busy_rows_are_left_out_where_others_remain(paired, before):
    """And what was measured next to them."""
    base = [run(timed(us), source=f"b{us}") for us in (100.0, 101.0)]
    head = [run(timed(us, contention=how), source=f"h{us}") for us, how in ((300.0, QUIET), (9000.0, BUSY))]
    [judged] = judge(base, head, rules(paired=paired)).cases
    assert (judged.verdict, judged.case.left_out) == (Verdict.SLOWER, 1)
    compared = judged.effects[0].replicates
    assert (compared.before, compared.after) == (pytest.approx(before), (300e-6,))
    assert "1 measurement left out: others used this machine" in " ".join(words.remarks(judged))


# Several processes on a quiet CPU.

TIMES, SLOWER_BY = 5, 0.05


def processes(rng, sd, *, slower=0.0):
    """Five rows of two cases; the second one is slower by this share."""

    def one(case, more):
        median = 2000.0 * math.exp(rng.gauss(0, sd)) * (1 + more)
        return timed(median, case=case, placements=placements(1e-6 * median, sd=0.02))

    return [run(one("a", 0.0), one("b", slower), source=str(rng.random())) for _ in range(TIMES)]


@pytest.mark.parametrize("paired", [False, True])
def test_five_processes_a_side_find_five_percent(paired):
    rng, held_to = random.Random(4), rules(paired=paired)
    found = false = 0
    for _ in range(100):
        cases = judge(processes(rng, 0.003), processes(rng, 0.003, slower=SLOWER_BY), held_to).cases
        slower = {judged.name for judged in cases if judged.verdict is Verdict.SLOWER}
        found, false = found + ("b" in slower), false + ("a" in slower)
    assert found >= 95
    assert false <= 1


@pytest.mark.parametrize("sd", [0.003, 0.01, 0.02])
def test_five_processes_a_side_of_identical_code_are_seldom_slower(sd):
    rng = random.Random(5)
    failed = sum(judge(processes(rng, sd), processes(rng, sd), rules()).exit_code == 1 for _ in range(300))
    assert failed <= 3


def test_two_processes_a_side_know_less_than_what_is_assumed():
    base, head = ([run(timed(us * (1 + n * 1e-3)), source=f"{us}{n}") for n in (0, 1)] for us in (100.0, 105.0))
    assert judge(base, head, rules()).cases[0].verdict is Verdict.AMBIGUOUS
