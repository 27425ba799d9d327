"""The gate of a report over seeds of a simulated stopwatch: limits and exit codes."""

from dataclasses import replace

import pytest
from tuner_runs import (
    BEST,
    COST_US,
    LIMITS,
    MOST,
    RAISES,
    SECOND,
    SEEDS,
    SLOWEST,
    WRONG,
    case,
    planted,
)

from pytest_flashinfer_perf.extensions.tuner import judge
from pytest_flashinfer_perf.extensions.tuner.results import LeftOut, QuestionResult
from pytest_flashinfer_perf.gate.thresholds import Thresholds


def found(one, limits=LIMITS):
    return list(judge.findings([one], limits))


def code(one, limits=LIMITS):
    return judge.exit_code([one], [], found(one, limits))


def test_a_planted_tuner_is_named_with_its_regret():
    for name in (SECOND, SLOWEST):
        intervals, regret = [one.regret(name) for one in planted()], COST_US[name] / COST_US[BEST] - 1
        assert sum(seen.low <= regret <= seen.high for seen in intervals) >= MOST - 1, name
    for one in planted():
        [_] = [each for each in found(one) if each.verdict == "FAIL" and f"takes {SLOWEST}," in each.sentence]


def test_exit_codes_follow_the_limits():
    assert {code(one) for one in planted()} == {judge.FAILED}
    assert {code(one, Thresholds()) for one in planted()} == {judge.FINE}
    best = [case(seed, [BEST, "1", BEST], default="1") for seed in range(SEEDS)]
    assert sum(code(one) == judge.FINE for one in best) >= MOST


@pytest.mark.parametrize("pick", [WRONG, RAISES])
def test_a_choice_that_cannot_be_used_fails_without_any_limit(pick):
    one = case(0, [pick])
    [failing] = [each for each in found(one, Thresholds()) if each.fails]
    assert f"takes {pick}, which is" in failing.sentence
    assert judge.exit_code([one], [], [failing]) == judge.FAILED


PLAIN = case(0, [])


def test_failed_cases_are_incomplete_and_none_is_too():
    assert judge.exit_code([PLAIN], [LeftOut("a", "failed", "x")], []) == judge.INCOMPLETE
    assert judge.exit_code([], [LeftOut("a", "skipped", "x")], []) == judge.INCOMPLETE
    assert judge.exit_code([PLAIN], [LeftOut("a", "skipped", "x")], []) == judge.FINE


def unjudged(*cases, limits=LIMITS):
    told = list(judge.findings(cases, limits))
    assert judge.exit_code(cases, [], told) == judge.INCOMPLETE
    return [one.sentence for one in told if one.verdict == "UNJUDGED"]


def test_what_is_asked_for_and_not_known_is_incomplete():
    fine = case(0, [BEST], default="1")
    tactics = tuple(replace(one, state="untimed") if one.tactic == SLOWEST else one for one in fine.tactics)
    assert unjudged(replace(fine, tactics=tactics)) == ["1 tactic of 8 had no turn: raise --budget"]
    tactics = tuple(replace(one, regret=None) if one.tactic == BEST else one for one in fine.tactics)
    assert unjudged(replace(fine, tactics=tactics)) == ["max_regret = 5%: what 0 costs is not known"]
    alone = replace(fine, tactics=fine.tactics[:1], questions=(QuestionResult("mm", ("R",), ("R: TypeError",)),))
    assert unjudged(alone, limits=Thresholds()) == ["mm: lists no tactics, R: TypeError"]


@pytest.mark.parametrize("glob", ["mine/m4*", "gemm/mine/m4*", "gemm/gemm/m4-auto", "tests/gemm/*"])
def test_limits_select_a_case_by_its_name_or_its_test(glob):
    slow = case(0, [BEST], test="tests/gemm/test_gemm.py::test_gemm[m4-auto]")
    [one] = found(slow, Thresholds(((glob, {"max_regret": 0.05}),)))
    assert (one.verdict, one.case) == ("FAIL", slow.case)


def test_limits_of_another_name_are_noted():
    misspelled = Thresholds((("bmn*", {"max_regret": 0.05}), ("other*", {"slower": 0.01})))
    [one] = found(case(0, [BEST], default="1"), misspelled)
    assert one.line == "NOTE bmn*: [thresholds] has a limit for it, and it fits no case that was raced"
