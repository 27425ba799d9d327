"""The gate of a report over seeds of a simulated stopwatch: limits, exit codes, and what grew since an earlier one."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tuner_runs import (
    BEST,
    COST_US,
    LIMITS,
    MOST,
    RAISES,
    SECOND,
    SEEDS,
    SLOW,
    SLOWEST,
    WRONG,
    case,
    planted,
)

from pytest_flashinfer_perf.extensions.tuner import judge, sets
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


def grown(now, then, limits=LIMITS):
    return [one.verdict for one in judge.grown([now], [], [then], limits)]


def test_a_default_that_got_worse_is_slower_though_the_best_is_as_fast():
    """By 5.6 %, in other processes."""
    worse = [case(seed + 500, [BEST], {**COST_US, SLOW: 132.0}) for seed in range(SEEDS)]
    assert sum(grown(now, then) == ["SLOWER"] for now, then in zip(worse, planted(), strict=True)) >= MOST
    [slower] = judge.grown(worse[:1], [], planted()[:1], LIMITS)
    assert slower.sentence.endswith("though the best is as fast")


SHARES = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(lambda shares: sets.Regret(*sorted(shares)))
PLAIN = case(0, [])


def of_default(regret, us):
    """A case whose default has this regret, beside a best of so many microseconds."""
    default, best = PLAIN.ways["default"], PLAIN.best[0]
    made = [replace(PLAIN.tactic(default), regret=regret), replace(PLAIN.tactic(best), seconds=(us * 1e-6,))]
    return replace(PLAIN, tactics=tuple(made), best=(best,))


@settings(max_examples=50)
@given(SHARES, SHARES, st.floats(1, 1000), st.floats(0.01, 0.5))
@example(sets.Regret(0.0, 0.0057, 0.0108), sets.Regret(0.0149, 0.0267, 0.0338), 33.2, 0.02)  # of identical code
def test_a_growth_counts_only_surely_beyond_the_threshold_of_the_gate(then, now, us, slower):
    limits = Thresholds((("gemm/mine*", {"slower": slower}),))
    before, after = of_default(then, us), of_default(now, us)
    surely = (1 + now.low) / (1 + then.high) - 1
    worse = grown(after, before, limits)
    assert not worse or surely > max(slower, 0.1 / us) - 1e-9
    assert worse or surely < max(slower, 0.1 / us) + 1e-9
    assert not (worse and grown(before, after, limits))


def test_what_vanished_is_named():
    before = case(0, [BEST])
    now = replace(before, tactics=before.tactics[:-1], questions=(QuestionResult("op", ()),))
    sentences = [each.sentence for each in judge.grown([now], [], [before], LIMITS)]
    gone = before.tactics[-1].tactic
    assert sentences == ["vanished since: 1 runner, Runner", f"vanished since: 1 tactic, {gone}"]
    between = QuestionResult("op", ("Runner",), rounded=("3 is tuned as 4", "one of 4 does not serve 3"))
    mended = replace(before, questions=(replace(between, rounded=between.rounded[:1]),))
    [served] = judge.grown([mended], [], [replace(before, questions=(between,))], LIMITS)
    assert served.line == f"NOTE {before.case}: no longer as in --base, op: one of 4 does not serve 3"
    both = [replace(before.tactics[0], tactic=f"up: A {up}; down: B {down}") for up in (0, 1) for down in (0, 1)]
    now, before = replace(before, tactics=tuple(both[1:3])), replace(before, tactics=tuple(both))
    assert not list(judge.grown([now], [], [before], LIMITS)), "every answer is there, combined otherwise"


def test_a_report_of_another_gpu_is_not_compared():
    now = replace(case(0, [BEST], {**COST_US, SLOW: 160.0}), device="B200")
    [note] = judge.grown([now], [], [case(0, [BEST])], LIMITS)
    assert note.line == f"NOTE {now.case}: not compared: --base was measured elsewhere or in another way"


def test_failed_cases_are_incomplete_and_none_is_too():
    assert judge.exit_code([PLAIN], [LeftOut("a", "failed", "x")], []) == judge.INCOMPLETE
    assert judge.exit_code([], [LeftOut("a", "skipped", "x")], []) == judge.INCOMPLETE
    assert judge.exit_code([PLAIN], [LeftOut("a", "skipped", "x")], []) == judge.FINE


def unjudged(*cases, limits=LIMITS, before=(), left_out=()):
    told = [*judge.findings(cases, limits), *judge.grown(cases, left_out, before, limits)]
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
    assert unjudged(fine, before=[replace(PLAIN, case="mine/other")]) == ["it has none of these cases"]
    gone = LeftOut("mine/gone", "skipped", "it asks nothing")
    [sentence] = unjudged(fine, before=[fine, replace(PLAIN, case="mine/gone")], left_out=[gone])
    assert sentence == "it was raced in --base, and is left out here: it asks nothing"


@pytest.mark.parametrize("glob", ["mine/m4*", "gemm/mine/m4*", "gemm/gemm/m4-auto", "tests/gemm/*"])
def test_limits_select_a_case_by_its_name_or_its_test(glob):
    slow = case(0, [BEST], test="tests/gemm/test_gemm.py::test_gemm[m4-auto]")
    [one] = found(slow, Thresholds(((glob, {"max_regret": 0.05}),)))
    assert (one.verdict, one.case) == ("FAIL", slow.case)


def test_limits_of_another_name_are_noted():
    misspelled = Thresholds((("bmn*", {"max_regret": 0.05}), ("other*", {"slower": 0.01})))
    [one] = found(case(0, [BEST], default="1"), misspelled)
    assert one.line == "NOTE bmn*: [thresholds] has a limit for it, and it fits no case that was raced"
