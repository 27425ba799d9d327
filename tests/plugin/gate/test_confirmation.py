"""Suspects that other processes measure again, which agree or do not; functions with two speeds."""

import copy
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import row, run
from verdicts import rules

from pytest_flashinfer_perf.gate import confirmation
from pytest_flashinfer_perf.gate.confirmation import Remeasured, confirm, remeasure
from pytest_flashinfer_perf.gate.decision import speeds_sentence, two_speeds
from pytest_flashinfer_perf.gate.effects import Domain
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.verdict import Verdict
from pytest_flashinfer_perf.rows import run_file

FAST, BUSY = 100.0, {"seconds": 1.0, "cores": 2, "waited": 0.9, "load": 6.0}


def suspected(us=150.0, *before):
    return judge([run(row("a", us=one)) for one in before or (FAST,)], [run(row("a", us=us))], rules())


def logs(*percents):
    return tuple(math.log1p(percent / 100) for percent in percents)


@pytest.mark.parametrize(
    ("again", "verdict", "reason", "sentence"),
    [
        (None, "SLOWER", "slower", "beyond the threshold in time; its process failed"),
        (
            Remeasured(logs(49, 30)),
            "SLOWER",
            "slower",
            "beyond the threshold in time; measured again: +49.00 %, +30.00 %",
        ),
        (Remeasured(logs(0.1, -2)), "AMBIGUOUS", "not-confirmed", "not confirmed, measured again: +0.10 %, -2.00 %"),
        # The mean of these two is more than four tenths of it.
        (
            Remeasured(logs(-7.17, 52.69)),
            "AMBIGUOUS",
            "two-speeds",
            "not confirmed, two speeds: 96.35 us and 151.3 us; measured again: -7.17 %, +52.69 %",
        ),
        (
            Remeasured(logs(50, 49, 0, 51)),
            "AMBIGUOUS",
            "two-speeds",
            "not confirmed, two speeds: 100.0 us and 150.0 us*",
        ),
        # One of four that misses it by noise, and two of four.
        (Remeasured(logs(30, 15, 42, 38)), "SLOWER", "slower", "beyond the threshold in time; *"),
        (Remeasured(logs(30, 15, 42, 12)), "AMBIGUOUS", "not-confirmed", "not confirmed, measured again: *"),
        (Remeasured((), "busy"), "AMBIGUOUS", "busy", "not confirmed, measured again while busy"),
        (Remeasured(logs(49), "busy"), "SLOWER", "slower", "beyond the threshold in time; measured again: +49.00 %"),
    ],
)
def test_each_process_has_to_show_the_change(again, verdict, reason, sentence):
    judgement = confirm(suspected(), {"a": again}, "its process failed")
    [judged] = judgement.cases
    assert (judged.verdict.value, judged.reason, judgement.exit_code) == (
        verdict,
        reason,
        1 if verdict == "SLOWER" else 2,
    )
    assert judged.sentence.startswith(sentence.rstrip("*"))


def test_what_is_no_suspect_is_not_touched():
    judgement = suspected(100.0)
    assert confirm(judgement, {"a": Remeasured(logs(300, 300))}, "x").cases == judgement.cases


@pytest.mark.parametrize(
    ("later", "processes"),
    [
        ((250, 250), 2),
        ((100, 100), 2),
        ((100, 250, 250, 250), 4),  # they disagree
        ((250, None, 250), 2),  # and one has no such row
        ((None, 250), 1),
        ((-250, -250), 2),  # on a busy machine
    ],
)
def test_more_processes_are_asked_where_these_disagree_and_no_more(later, processes):
    asked = []

    def measure(nth, suspects):
        asked.append([suspect.name for suspect in suspects])
        us = later[min(nth, len(later) - 1)]
        wall = {"instrument": "wall", "contention": BUSY if us and us < 0 else None}
        rows = [row("b", us=150, instrument="wall"), *([row("a", us=abs(us), **wall)] if us else [])]
        return judge([base], [run(*rows)], rules())

    base = run(row("a", instrument="wall"), row("b", instrument="wall"))
    head = run(row("a", us=300, instrument="wall"), row("b", us=300, instrument="wall"))
    suspects = judge([base], [head], rules()).having(Verdict.SLOWER)
    again = remeasure(suspects, measure)
    assert [("a" in names) for names in asked] == [True] * processes + [False] * (max(2, processes) - processes)
    assert again["b"].changes == pytest.approx([math.log(1.5)] * 2)
    if None in later:
        assert again["a"] is None
    elif later[0] < 0:
        assert (again["a"].changes, again["a"].load[:24]) == ((), "others used this machine")
    else:
        assert again["a"].changes == pytest.approx([math.log(us / 100) for us in later])


# Two speeds.


@given(
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
    st.floats(1.2, 3.0),
    st.randoms(use_true_random=False),
)
def test_two_speeds_are_those_that_one_side_has_both_of(counts, others, apart, rng):
    """Each level is narrow, and far from the other; sides that lie on one level each differ by the code."""

    def level(us, count):
        return [us * math.exp(rng.uniform(-0.02, 0.02)) for _ in range(count)]

    mixed = [*level(100.0, counts[0]), *level(100.0 * apart, counts[1])]
    other = [*level(100.0, others[0]), *level(100.0 * apart, others[1])] or level(100.0, 1)
    low, high = two_speeds(other, mixed)
    assert (low, high) == pytest.approx((100.0, 100.0 * apart), rel=0.03)
    assert two_speeds(mixed, other) == (low, high)
    assert two_speeds(level(100.0, counts[0]), level(100.0 * apart, counts[1])) is None


@given(st.lists(st.floats(100, 101), min_size=1, max_size=5), st.floats(1.05, 3))
def test_a_side_that_is_slower_in_each_process_has_no_two_speeds(before, by):
    assert two_speeds(before, [by * us for us in before]) is None


def test_speeds_have_the_unit_of_what_is_compared():
    assert speeds_sentence(Domain.TIME, (2.0e-3, 3.05e-3)) == "two speeds: 2.000 ms and 3.050 ms"
    assert speeds_sentence(Domain.CYCLES, (186e3, 210e3)) == "two speeds: 186,000 cycles and 210,000 cycles"


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ((100, 100.1, 99.9, 100, 100.2), (150, 150.2, 149.9, 100.1, 150), "two-speeds"),
        ((150, 150.1, 149.8, 100, 150), (100, 100.1, 100.2, 100, 99.9), "two-speeds"),
        ((100, 100.1, 99.9, 100, 100.2), (150, 150.2, 149.9, 150.1, 150), "slower"),
        ((100, 100.1, 99.9, 150, 100.2), (200, 200.2, 199.9, 300, 200), "slower"),  # twice, on both levels
    ],
)
def test_processes_of_two_speeds_are_compared_by_neither(before, after, reason):
    base, head = ([run(row(us=us, instrument="wall"), source=f"{us}") for us in side] for side in (before, after))
    [judged] = judge(base, head, rules()).cases
    assert judged.reason == reason


def test_what_is_slower_by_right_on_recorded_rows_is_confirmed(pytestconfig):
    """Rows of an H200, 5 % slower, and processes that vary as the gate takes them to."""
    recorded = json.loads((pytestconfig.rootpath / "evidence" / "h200-run.json").read_text())
    base = run_file.parse(recorded, "base.json")
    judgement = judge([base], [run_file.parse(slower(recorded, 1.05), "head.json")], rules())
    suspects = judgement.having(Verdict.SLOWER)
    assert len(suspects) >= 0.8 * len(judgement.cases)
    rng = random.Random(5)
    for _ in range(20):
        again = {one.name: again_with_noise(one, rng) for one in suspects}
        kept = confirm(judgement, again).having(Verdict.SLOWER)
        assert [one.name for one in kept] == [one.name for one in suspects]


def slower(document, by):
    """The same run in which each kernel takes longer by this factor, and the gaps as long as before."""
    made = copy.deepcopy(document)
    for one in made["benchmarks"]:
        info = one["extra_info"]
        gap = info["gap"] or 0.0
        for figures, names in ((one["stats"], ("median", "mean", "min", "max")), (info, ("busy", "cycles"))):
            figures |= {name: figures[name] * by for name in names if figures[name]}
        one["stats"]["median"] -= gap * (by - 1)
        one["stats"]["data"] = [seconds * by for seconds in one["stats"]["data"]]
        for placed in info["placements"]:
            placed |= {name: placed[name] * by for name in ("median", "busy", "cycles") if placed[name]}
    return made


def again_with_noise(suspect, rng):
    primary = suspect.primary
    again = Remeasured()
    for nth in range(confirmation.MOST):
        if nth < confirmation.processes(suspect, again):
            again = Remeasured((*again.changes, primary.change + rng.gauss(0.0, primary.noise.sd)))
    return again
