"""Verdicts on made-up rows: each word, each reason code, each exit code."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made import document, plain, row, run

from pytest_flashinfer_perf.gate import likeness, runs, words
from pytest_flashinfer_perf.gate.decide import confirm
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.likeness import AllowError
from pytest_flashinfer_perf.gate.thresholds import Rival, Thresholds
from pytest_flashinfer_perf.gate.verdict import Rules, Verdict

CASE = "decode/b16-fa3"


def rules(*, allow="", strict=False, paired=False, calibrations=(), glob="*", **asked):
    entries = ((glob, asked),) if asked else ()
    return Rules(Thresholds(entries), likeness.allowed(allow), strict, paired, calibrations)


def verdict(base, head, held_to=None):
    """Of single rows: the verdict, its reason, the exit code."""
    judgement = judge([run(base)], [run(head)], held_to or rules())
    [judged] = judgement.cases
    return judged.verdict.value, judged.reason, judgement.exit_code


def several(*medians, **said):
    return [run(row(us=us, **said), source=f"{n}.json") for n, us in enumerate(medians)]


def jittered(us, seed, sd=0.001, n=5):
    rng = random.Random(seed)
    return [us * math.exp(rng.gauss(0, sd)) for _ in range(n)]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (100.0, ("SAME", "within-threshold", 0)),
        (101.0, ("SAME", "within-threshold", 0)),
        (110.0, ("SLOWER", "slower", 1)),
        (90.0, ("FASTER", "faster", 0)),
    ],
)
def test_one_run_against_one(now, expected):
    assert verdict(row(us=100.0, stddev=0.005), row(us=now, stddev=0.005), rules(slower=0.02)) == expected


@pytest.mark.parametrize("now", [95.0, 105.0])
def test_what_may_be_noise_is_ambiguous(now):
    """Neither row has placements, so that nobody knows how far processes lie apart."""
    for bound in ("memory", None, "memory?"):
        before, after = row(bound=bound, placements=[]), row(us=now, bound=bound, placements=[])
        assert verdict(before, after) == ("AMBIGUOUS", "not-significant", 0)


def test_a_noisy_case_is_not_called_the_same():
    plain_ones = (plain(us=100.0), plain(us=101.0))
    assert verdict(*plain_ones) == ("AMBIGUOUS", "cannot-see", 0)
    assert verdict(*plain_ones, rules(strict=True)) == ("AMBIGUOUS", "cannot-see", 2)


def test_a_slowdown_below_the_floor_does_not_count():
    assert verdict(row(us=1.40, stddev=0), row(us=1.49, stddev=0))[0] == "SAME"
    assert verdict(row(us=1.40, stddev=0), row(us=1.49, stddev=0), rules(floor_us=0.01))[0] == "SLOWER"


def cycles(us, ghz=1.8, bound="compute", clock=1.0):
    counted = (us + 3.5) * ghz * 1e3
    return row(us=us / clock, bound=bound, cycles=counted, sm_ghz=ghz * clock)


def test_a_lower_clock_is_not_a_slower_kernel():
    assert verdict(cycles(100.0), cycles(100.0, clock=0.85)) == ("AMBIGUOUS", "time-only", 0)


def test_a_compute_bound_case_is_judged_in_cycles_and_a_memory_bound_one_in_time():
    for bound, domain in (("compute", "cycles"), ("memory", "time")):
        judgement = judge([run(cycles(100, bound=bound))], [run(cycles(110, bound=bound))], rules())
        [judged] = judgement.having(Verdict.SLOWER)
        assert judged.effects[0].seen.domain == domain
        assert len(judged.effects) == 2


def test_a_short_compute_bound_kernel_is_judged_in_its_own_cycles():
    """Stamps take as long as the kernel: three percent of it are one and a half of the cycles between them."""
    base, head = ([run(cycles(us)) for us in jittered(us, seed, 1e-4)] for us, seed in ((3.5, 1), (3.605, 2)))
    [judged] = judge(base, head, rules(paired=True, slower=0.02, floor_us=0.0)).cases
    assert judged.effects[0].seen.domain == "cycles"
    assert judged.effects[0].change == pytest.approx(math.log(1.03), abs=0.001)
    assert judged.verdict is Verdict.SLOWER
    assert verdict(cycles(3.5), cycles(3.5, clock=0.85), rules(floor_us=0.0)) == ("AMBIGUOUS", "time-only", 0)


def test_a_memory_bound_case_far_from_memorys_roof_is_judged_in_cycles():
    def domain(percent, us=100.0):
        counted = {**cycles(us, bound="memory")}
        counted["extra_info"]["sol_pct"] = percent
        [judged] = judge([run(counted)], [run(counted)], rules()).cases
        return judged.effects[0].seen.domain

    assert (domain(30), domain(90), domain(30, us=5.0)) == ("cycles", "time", "time")


def test_a_memory_bound_case_whose_cycles_stay_is_ambiguous():
    before, after = cycles(100, bound="memory"), cycles(100, bound="memory", clock=0.9)
    assert verdict(before, after) == ("AMBIGUOUS", "time-only", 0)


def test_a_compute_bound_case_whose_time_stays_is_ambiguous():
    slower = row(us=100.0, bound="compute", cycles=210e3, sm_ghz=2.0)
    base = [run(row(us=us, bound="compute", cycles=186e3, sm_ghz=1.8)) for us in jittered(100, 1)]
    head = [run({**slower}) for _ in base]
    [judged] = judge(base, head, rules(paired=True, slower=0.05)).cases
    assert (judged.verdict, judged.reason) == (Verdict.AMBIGUOUS, "cycles-only")


def test_replicates_find_what_one_run_cannot():
    base, head = (several(*jittered(us, seed)) for us, seed in ((100, 1), (101, 2)))
    [judged] = judge(base, head, rules(slower=0.005)).cases
    assert judged.verdict is Verdict.SLOWER
    assert judged.sees < math.log1p(0.02)


def gone(**said):
    return judge([run(row(), row("decode/b1-fa3"))], [run(row(), **said)], rules())


def unmeasured(outcome):
    return [{"case": "decode/b1-fa3", "outcome": outcome, "reason": "needs a GPU"}]


@pytest.mark.parametrize(("outcome", "code"), [("skipped", 2), ("failed", 1), ("xfailed", 2)])
def test_a_case_that_was_not_measured_is_missing_for_the_reason_that_the_run_gives(outcome, code):
    judgement = gone(unmeasured=unmeasured(outcome))
    [judged] = judgement.having(Verdict.MISSING)
    assert (judged.name, judged.reason, judgement.exit_code) == ("decode/b1-fa3", outcome, code)
    assert "needs a GPU" in judged.sentence


def test_what_is_missing_can_be_allowed_by_name_but_not_what_failed():
    base = [run(row(), row("decode/b1-fa3"))]
    for outcome, code in (("skipped", 0), ("failed", 1)):
        assert judge(base, [run(row(), unmeasured=unmeasured(outcome))], rules(allow="missing")).exit_code == code
    assert judge(base, [run(row())], rules()).exit_code == 2
    assert judge(base, [run(row())], rules(allow="missing")).exit_code == 0
    assert judge(base, [run(row())], rules(allow="deselected")).exit_code == 2
    assert judge(base, [run(row(), unmeasured=unmeasured("deselected"))], rules(allow="deselected")).exit_code == 0


def test_a_measured_case_that_failed_in_another_process_is_not_judged():
    failed = run(unmeasured=[{"case": CASE, "outcome": "failed", "reason": "wrong answer"}])
    judgement = judge([run(row())], [run(row()), failed], rules())
    assert (judgement.cases[0].reason, judgement.exit_code) == ("failed", 1)


def test_a_row_and_a_failure_of_one_case_is_a_failure():
    both = run(row(), unmeasured=[{"case": CASE, "outcome": "failed", "reason": "boom"}])
    judgement = judge([run(row())], [both], rules(allow="invalid"))
    assert (judgement.cases[0].reason, judgement.exit_code) == ("failed", 1)


WRONG = {"case": "decode/extra-fa3", "outcome": "failed", "reason": "wrong answer: output 0\nworst at [0]"}


@pytest.mark.parametrize("allow", ["", "missing,invalid"])
@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        (run(row()), "made: wrong answer: output 0"),
        (run(row(), unmeasured=[WRONG]), "made: wrong answer: output 0; it fails in the baseline too"),
    ],
)
def test_a_failure_that_neither_side_measured_is_listed_and_is_worse(base, sentence, allow):
    judgement = judge([base], [run(row(), unmeasured=[WRONG])], rules(allow=allow))
    [judged] = judgement.having(Verdict.INVALID)
    assert (judged.name, judged.reason, judged.sentence) == ("decode/extra-fa3", "failed", sentence)
    assert judgement.exit_code == 1


def test_a_failure_of_the_baseline_alone_is_not_this_runs():
    assert judge([run(row(), unmeasured=[WRONG])], [run(row())], rules()).exit_code == 0


def test_a_failure_under_the_tests_id_is_one_of_the_case_that_was_measured():
    of_test = {"case": row()["fullname"], "outcome": "failed", "reason": "boom"}
    judgement = judge([run(row())], [run(unmeasured=[of_test])], rules())
    assert [(judged.name, judged.reason) for judged in judgement.cases] == [(CASE, "failed")]


OTHER_PROCESSES = {
    "skipped": run(unmeasured=[{"case": CASE, "outcome": "skipped", "reason": "no GPU"}]),
    "beyond-roof": run(row(status="invalid")),
    "twice": run(row(), row()),
    "unlike": run(row(gpu_uuid="GPU-1")),
}


@pytest.mark.parametrize("other", OTHER_PROCESSES.values(), ids=list(OTHER_PROCESSES))
@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (run(row(status="wrong")), "wrong-answer"),
        (run(unmeasured=[{"case": CASE, "outcome": "failed", "reason": "x"}]), "failed"),
    ],
)
def test_what_is_wrong_in_one_process_is_worse_whatever_another_has(other, bad, reason):
    for head in ([other, bad], [bad, other]):
        judgement = judge([run(row())], head, rules(allow="missing,invalid,gpu"))
        assert (judgement.cases[0].reason, judgement.exit_code) == (reason, 1)


def test_a_wrong_answer_without_a_partner_in_its_pair_is_worse():
    judgement = judge([run(row()), run()], [run(row()), run(row(status="wrong"))], rules(paired=True))
    assert (judgement.cases[0].reason, judgement.exit_code) == ("wrong-answer", 1)


def test_a_case_that_failed_and_was_skipped_in_one_run_has_failed():
    both = [{"case": CASE, "outcome": outcome, "reason": "x"} for outcome in ("failed", "skipped")]
    assert judge([run(row())], [run(unmeasured=both)], rules()).cases[0].reason == "failed"


@pytest.mark.parametrize(
    ("row_of_head", "reason", "code", "code_allowed"),
    [
        (row(status="wrong"), "wrong-answer", 1, 1),
        (row(status="invalid"), "beyond-roof", 2, 2),
        (row(us=None), "no-time", 2, 2),
        (row(us=0.0), "no-time", 2, 2),
        (row(us=math.nan), "no-time", 2, 2),
    ],
)
def test_rows_that_cannot_be_believed_are_invalid(row_of_head, reason, code, code_allowed):
    """Allowed, nothing is left that was compared."""
    assert verdict(row(), row_of_head) == ("INVALID", reason, code)
    assert verdict(row(), row_of_head, rules(allow="invalid")) == ("INVALID", reason, code_allowed)


def test_an_invalid_row_can_be_allowed_beside_others():
    base, other = [run(row(), row("decode/b1-fa3"))], row("decode/b1-fa3")
    assert judge(base, [run(row(status="invalid"), other)], rules(allow="invalid")).exit_code == 0
    assert judge(base, [run(row(status="wrong"), other)], rules(allow="invalid")).exit_code == 1


def test_a_wrong_baseline_is_not_this_runs_fault():
    assert verdict(row(status="wrong"), row()) == ("INVALID", "wrong-baseline", 2)


def test_an_answer_that_is_wrong_on_both_sides_is_wrong():
    wrong = run(row(status="wrong"))
    judgement = judge([wrong], [wrong], rules())
    assert (judgement.cases[0].reason, judgement.exit_code) == ("wrong-answer", 1)
    assert judgement.cases[0].sentence == "made: its answer is wrong in this run, and in the baseline"


def test_two_rows_of_one_name_are_invalid():
    judgement = judge([run(row())], [run(row(), row(us=50.0))], rules())
    assert (judgement.cases[0].reason, judgement.exit_code) == ("twice", 2)


UNLIKE = [
    ("gpu", {"gpu_uuid": "GPU-1"}, {}),
    ("model", {"device_name": "NVIDIA H100"}, {}),
    ("instrument", {"instrument": "events"}, {}),
    ("cold-l2", {"cold_l2": "flush"}, {}),
    ("cuda-graph", {"cuda_graph": False}, {}),
    ("seed", {"seed": 7}, {}),
    ("driver", {}, {"driver": "590"}),
]


@pytest.mark.parametrize(("facet", "info", "machine"), UNLIKE, ids=[name for name, *_ in UNLIKE])
def test_what_is_unlike_is_refused_by_name_and_can_be_allowed_by_it(facet, info, machine):
    base, head = [run(row())], [run(row(**info), machine={"driver": "580", **machine})]
    refused = judge(base, head, rules())
    assert (refused.cases[0].verdict, refused.cases[0].reason, refused.exit_code) == (Verdict.INVALID, facet, 2)
    assert "in the baseline" in refused.cases[0].sentence
    assert judge(base, head, rules(allow=facet)).exit_code == 0
    assert judge(base, head, rules(allow="missing,invalid")).exit_code == 2


def test_another_card_costs_what_cards_are_apart():
    other = row(us=103.5, gpu_uuid="GPU-1", stddev=0)
    assert verdict(row(stddev=0), row(us=103.5, stddev=0))[0] == "SLOWER"
    assert verdict(row(stddev=0), other, rules(allow="gpu"))[0] == "SAME"


def test_another_library_is_compared_unless_asked_not_to():
    base, head = [run(row())], [run(row(), machine={"driver": "580", "flashinfer": "0.7.3"})]
    assert judge(base, head, rules()).exit_code == 0
    judgement = judge(base, head, rules(same_library=True))
    assert (judgement.cases[0].reason, judgement.exit_code) == ("library", 2)
    assert judge(base, head, rules(same_library=True, allow="library")).exit_code == 0


def test_unlike_processes_of_one_side_are_refused_too():
    judgement = judge([run(row()), run(row(instrument="events"))], [run(row())], rules())
    assert judgement.cases[0].reason == "instrument"


def test_a_new_case_is_listed_and_is_nobodys_fault():
    judgement = judge([run(row())], [run(row(), row("decode/new-fa3"))], rules())
    assert [judged.name for judged in judgement.having(Verdict.NEW)] == ["decode/new-fa3"]
    assert judgement.exit_code == 0


def test_a_new_case_with_a_wrong_answer_is():
    judgement = judge([run(row())], [run(row(), row("decode/new-fa3", status="wrong"))], rules())
    assert judgement.exit_code == 1


@pytest.mark.parametrize("head", [run(), run(row("decode/other-fa3"))])
def test_nothing_compared_is_never_good(head):
    judgement = judge([run(row())], [head], rules(allow="missing,invalid"))
    assert judgement.nothing
    assert judgement.exit_code == 2


def test_plain_benchmarks_are_matched_by_fullname():
    judgement = judge([run(plain("a"), plain("b"))], [run(plain("b"), plain("a"))], rules())
    assert sorted(judged.name for judged in judgement.cases if judged.compared) == ["t.py::a", "t.py::b"]


def test_a_moved_checkout_changes_nothing():
    moved = {**row(), "fullname": "elsewhere/test_decode.py::test_decode[b16-fa3]"}
    assert verdict(row(), moved)[0] == "SAME"


FOLDER = "2 of the MISSING are here under the name of another folder (old/t.py::a[x/1] is t.py::a[x/1] here): "


@pytest.mark.parametrize(
    ("come", "expected"),
    [
        (("t.py::a[x/1]", "t.py::b"), [f"{FOLDER}start both in the same folder, or give both the same --rootdir"]),
        (("new/other.py::a[x/1]", "new/t.py::c", "decode/b16-fa2"), []),
    ],
)
def test_tests_that_are_only_in_another_folder_are_said_to_be(come, expected):
    base = run(row("old/t.py::a[x/1]"), row("old/t.py::b"), row("old/b16-fa2"), row())
    judgement = judge([base], [run(row(), *map(row, come))], rules())
    assert list(words.notes(judgement)) == expected
    assert judgement.exit_code == 2


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


def beside(fa3, fa2):
    return run(row("decode/b16-fa3", us=fa3), row("decode/b16-fa2", us=fa2))


@pytest.mark.parametrize(("fa3", "fa2", "code"), [(100, 110, 0), (115, 100, 1), (100.5, 100, 0)])
def test_a_backend_must_not_be_slower_than_another(fa3, fa2, code):
    """Half a percent may be noise: only what is surely slower breaks it."""
    one = beside(fa3, fa2)
    assert judge([one], [one], rules(max_vs_backend=Rival("fa2"))).exit_code == code
    if code:
        assert judge([one], [one], rules(max_vs_backend=Rival("fa2", 1.2))).exit_code == 0


def test_a_rival_that_was_not_measured_is_no_pass():
    judgement = judge([run(row())], [run(row())], rules(max_vs_backend=Rival("fa2")))
    assert (judgement.cases[0].reason, judgement.exit_code) == ("no-figure", 2)


def test_pairs_in_which_one_side_lacks_a_case_are_not_judged():
    base, head = [run(row()), run(row())], [run(row()), run()]
    judgement = judge(base, head, rules(paired=True))
    assert (judgement.cases[0].reason, judgement.exit_code) == ("torn", 2)
    assert judge([run(row()), run()], [run(row()), run()], rules(paired=True)).exit_code == 0
    assert judge([run(row())], [run()], rules(paired=True)).cases[0].verdict is Verdict.MISSING


@pytest.mark.parametrize(
    ("again", "word", "code"),
    [({CASE: (0.09, 0.08)}, "SLOWER", 1), ({CASE: (0.001,)}, "AMBIGUOUS", 0), ({}, "SLOWER", 1)],
)
def test_a_suspect_stays_one_when_it_is_slow_again(again, word, code):
    judgement = confirm(judge([run(row())], [run(row(us=110.0))], rules()), again)
    assert (judgement.cases[0].verdict.value, judgement.exit_code) == (word, code)


def test_the_worst_come_first_and_are_counted():
    cases = {"a": 100.0, "b": 130.0, "c": 110.0, "d": 80.0}
    base = run(*(row(name) for name in cases), row("gone"))
    head = run(*(row(name, us=us) for name, us in cases.items()), row("new"))
    judgement = judge([base], [head], rules())
    assert [judged.name for judged in judgement.cases] == ["b", "c", "gone", "d", "a", "new"]
    assert judgement.exit_code == 1


def test_unknown_names_to_allow_say_which_are_known():
    with pytest.raises(AllowError, match=r"unknown name 'mising', did you mean missing\?.*known are model, gpu"):
        likeness.allowed("gpu,mising")
    with pytest.raises(AllowError, match="unknown name 'zzz', known are"):
        likeness.allowed("zzz")
    assert likeness.allowed("gpu, driver") == {"gpu", "driver"}


medians = st.floats(1.0, 1e4)


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(medians, medians), min_size=1))
def test_the_same_files_give_the_same_verdicts_in_any_order(cases):
    base = [row(name, us=before) for name, (before, _) in cases.items()]
    head = [row(name, us=after) for name, (_, after) in cases.items()]
    one = judge([run(*base)], [run(*head)], rules())
    other = judge([run(*base[::-1])], [run(*head[::-1])], rules())
    assert {j.name: (j.verdict, j.threshold, j.sees) for j in one.cases} == {
        j.name: (j.verdict, j.threshold, j.sees) for j in other.cases
    }
    assert one.exit_code == other.exit_code


def test_what_is_read_is_what_is_judged(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(document(row())))
    assert judge(runs.read([tmp_path]), runs.read([tmp_path / "a.json"]), rules()).exit_code == 0
