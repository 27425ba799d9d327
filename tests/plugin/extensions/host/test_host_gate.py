"""Verdicts on what a call costs the host, of made-up rows."""

import math
import random

import pytest
from made import document, row, run

from pytest_flashinfer_perf.extensions.host.host_gate import QUANTITY
from pytest_flashinfer_perf.extensions.host.host_time import REFERENCE_US, HostLine, HostTime
from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.confirmation import Remeasured, confirm
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Rules
from pytest_flashinfer_perf.rows import fields, run_file

ASKED = {"slower_host": 0.1}
QUIET = {"seconds": 1.0, "cores": 2, "waited": 0.0, "taken": 0.0, "load": 0.0}
BUSY = {**QUIET, "waited": 0.7, "taken": 0.8, "load": 6.2}


def host(us, plan_us=None, *, slowness=1.0, **seen):
    """By a core that takes `slowness` times as long for everything."""
    around = tuple(slowness * late for late in (1.9, 1.0, 1.01, 1.3, 1.002))
    rounds, plans = (tuple(figure * factor for factor in around) if figure else () for figure in (us, plan_us))
    references, of_plans = ((slowness * REFERENCE_US,) * len(times) for times in (rounds, plans))
    known = {"launches": 1, "synchronisations": 0, "references_us": references, "plan_references_us": of_plans, **seen}
    return fields.written(HostTime(us * slowness, rounds, False, plan_us and plan_us * slowness, plans, **known))


def rules(asked, **how):
    return Rules(Thresholds((("*", asked),)), quantities=(QUANTITY,), **how)


def judged(before, after, asked=ASKED, now=100.0):
    judgement = judge([run(row(host=before))], [run(row(us=now, host=after))], rules(asked))
    [one] = judgement.cases
    return one, judgement.exit_code


@pytest.mark.parametrize(
    ("before", "after", "verdict", "reason", "code"),
    [
        (host(50), host(50.5), "SAME", "within-threshold", 0),
        (host(50), host(65), "SLOWER", "slower-host", 1),
        (host(70), host(50), "FASTER", "faster-host", 0),
        (host(50, 130), host(50, 3118), "SLOWER", "slower-plan", 1),
        (host(50), host(56), "AMBIGUOUS", "not-significant", 2),
        (host(50), host(50, slowness=1.8), "SAME", "within-threshold", 0),
        (host(50, 130, slowness=1.8), host(65, 130), "SLOWER", "slower-host", 1),
        (host(50, 130), host(50, 175), "AMBIGUOUS", "not-significant", 2),  # plans differ more between processes
        (host(50, 130), host(50, 300), "SLOWER", "slower-plan", 1),
        (host(50, 100), host(50), "INVALID", "no-figure", 2),  # some of its rows have a plan and others have none
        (host(50), {**host(80), "contention": QUIET}, "SLOWER", "slower-host", 1),
        (host(50), {**host(80), "contention": BUSY}, "AMBIGUOUS", "busy", 2),
    ],
)
def test_the_host_alone_may_be_slower(before, after, verdict, reason, code):
    seen, exit_code = judged(before, after)
    assert (seen.verdict.value, seen.reason, exit_code) == (verdict, reason, code)


def test_a_case_slower_on_the_host_alone_says_so_and_shows_the_hosts_times_and_calls():
    seen, _ = judged(host(50), host(65, **WAITS))
    assert list(words.remarks(seen)) == ["synchronisations of a call 0 -> 2: 2 x mine.py:7 in call"]
    assert seen.sentence == "slower on the host alone: the time to enqueue it changed by more than slower_host"
    assert words.times(seen) == "50.00 us -> 65.00 us"
    assert words.changes(seen) == "host +30.00 %, time +0.00 %"


def test_a_measurement_again_is_not_advised_for_noise_that_rows_never_have():
    judgement = judge([run(row(host=host(50)))], [run(row(host=host(65)))], rules(ASKED))
    assert list(words.assumed_noise(judgement)) == []


def test_the_gpus_slowdown_stays_the_first_thing_to_read():
    seen, _ = judged(host(50), host(65), now=120.0)
    assert (seen.reason, words.times(seen)) == ("slower", "100.0 us -> 120.0 us")
    assert "host +30.00 %" in words.changes(seen)


def test_without_a_threshold_it_is_shown_and_fails_nothing():
    seen, code = judged(host(50, 100), host(500, 9000), asked={})
    assert (seen.verdict.value, code) == ("SAME", 0)
    assert words.changes(seen) == "time +0.00 %, host +900.00 %, plan +8900.00 %"


WAITS = {"synchronisations": 2, "lines": (HostLine("mine.py:7 in call", 2),)}


@pytest.mark.parametrize(
    ("asked", "seen", "broken"),
    [
        ({"max_host_us": 40}, host(50), ["max_host_us = 40: it has 50"]),
        ({"max_plan_us": 200}, host(50, 3118), ["max_plan_us = 200: it has 3118"]),
        ({"max_launches": 2}, host(50, launches=3), ["max_launches = 2: it has 3"]),
        ({"no_sync": True}, host(50, **WAITS), ["no_sync: it waits for the GPU, 2 x mine.py:7 in call"]),
        ({"max_host_us": 60, "max_launches": 1, "no_sync": True}, host(50), []),
        ({"max_plan_us": 1}, host(50), []),  # what is not planned has no limit
    ],
)
def test_absolutes_break_or_hold(asked, seen, broken):
    one, code = judged(seen, seen, asked)
    assert ([found.sentence for found in one.broken], code) == (broken, int(bool(broken)))


@pytest.mark.parametrize(
    ("asked", "seen"),
    [
        (ASKED, None),
        (ASKED, host(50, references_us=())),
        ({"max_host_us": 60}, None),
        ({"max_plan_us": 60}, None),
        ({"max_launches": 60}, host(50, launches=None)),
        ({"no_sync": True}, host(50, synchronisations=None)),
    ],
)
def test_what_nobody_saw_is_held_to_nothing_and_is_no_pass(asked, seen):
    one, code = judged(seen, seen, asked)
    assert (one.verdict.value, one.reason, code) == ("INVALID", "no-figure", 2)


@pytest.mark.parametrize(
    ("before", "after", "asked", "verdict", "reason"),
    [
        (host(50), host(50.5), {}, "SAME", "within-threshold"),
        (host(50), host(65), {}, "SLOWER", "slower-host"),  # by a tenth, where no limit is set
        (host(50), host(65), {"slower_host": 0.6}, "SAME", "within-threshold"),
        (host(50), None, {}, "INVALID", "no-figure"),
    ],
)
def test_the_host_alone_is_judged_where_it_is_searched_for(before, after, asked, verdict, reason):
    """As `bisect` does, whatever became of the time on the GPU."""
    held_to = rules(asked, quantity="host")
    [one] = judge([run(row(host=before))], [run(row(us=300.0, host=after))], held_to).cases
    assert (one.verdict.value, one.reason) == (verdict, reason)
    assert [str(effect.replicates.domain) for effect in one.effects] == (["host", "time"] if after else [])


def test_a_suspect_of_the_host_is_confirmed_on_the_host():
    judgement = judge([run(row(host=host(50)))], [run(row(host=host(65)))], rules(ASKED))
    for again, verdict in (([0.25, 0.27], "SLOWER"), ([0.0, 0.01], "AMBIGUOUS")):
        [one] = confirm(judgement, {"decode/b16-fa3": Remeasured(tuple(again))}).cases
        assert one.verdict.value == verdict


def test_a_busy_host_leaves_the_gpus_times_alone():
    assert judged(host(50), {**host(80), "contention": BUSY}, asked={})[0].reason == "within-threshold"


def test_ten_microseconds_more_are_found_and_identical_code_is_not_called_slower():
    rng = random.Random(23)
    cases = {f"decode/{n}-fa3": rng.uniform(20, 35) for n in range(20)}

    def process(more):
        noisy = {name: us * math.exp(rng.gauss(0, 0.01)) + more for name, us in cases.items()}
        return run_file.parse(document(*(row(name, host=host(us)) for name, us in noisy.items())), str(rng.random()))

    def slower(more):
        judgement = judge([process(0)], [process(more)], rules({"slower_host": 0.08}))
        return sum(one.verdict.value == "SLOWER" for one in judgement.cases)

    assert [slower(10) for _ in range(5)] == [20] * 5
    assert [slower(0) for _ in range(10)] == [0] * 10
