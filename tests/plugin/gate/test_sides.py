"""Cases that have no verdict on a change: missing, failed, wrong, invalid, unlike or new, and what may be allowed."""

import math
from dataclasses import dataclass

import pytest
from made import row, run
from verdicts import CASE, rules, verdict

from pytest_flashinfer_perf.gate import match
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.match import AllowError
from pytest_flashinfer_perf.gate.verdict import Verdict
from pytest_flashinfer_perf.rows.parts import DECLARED


def sampled(us):
    """A row whose samples are others than its median says."""
    made = row()
    made["stats"]["data"] = [us * 1e-6] * 3
    return made


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


FAILED = run(unmeasured=[{"case": CASE, "outcome": "failed", "reason": "x"}])
BOTH_ENDS = run(unmeasured=[{"case": CASE, "outcome": end, "reason": "x"} for end in ("failed", "skipped")])
OF_ITS_TEST = run(unmeasured=[{"case": row()["fullname"], "outcome": "failed", "reason": "boom"}])
GOOD, BAD, OTHER = run(row()), run(row(status="wrong")), row("decode/b1-fa3")
INVALID = {"allow": "invalid"}
SIDES = {  # base, head, what is allowed besides, and the reason of the worst case with the exit code
    "failed in another process": ([GOOD], [GOOD, FAILED], {}, "failed", 1),
    "a row and a failure": ([GOOD], [run(row(), unmeasured=[{**WRONG, "case": CASE}])], INVALID, "failed", 1),
    "failed in the baseline": ([run(row(), unmeasured=[WRONG])], [GOOD], {}, "within-threshold", 0),
    "failed by its test's id": ([GOOD], [OF_ITS_TEST], {}, "failed", 1),
    "failed and skipped": ([GOOD], [BOTH_ENDS], {}, "failed", 1),
    "wrong without a partner": ([GOOD, run()], [GOOD, BAD], {"paired": True}, "wrong-answer", 1),
    "invalid beside others": ([run(row(), OTHER)], [run(row(status="invalid"), OTHER)], INVALID, "beyond-roof", 0),
    "wrong beside others": ([run(row(), OTHER)], [run(row(status="wrong"), OTHER)], INVALID, "wrong-answer", 1),
    "wrong in the baseline": ([BAD], [GOOD], {}, "wrong-baseline", 2),
    "wrong on both sides": ([BAD], [BAD], {}, "wrong-answer", 1),
    "two rows": ([GOOD], [run(row(), row(us=50.0))], {}, "twice", 2),
    "unlike within a side": ([GOOD, run(row(instrument="events"))], [GOOD], {}, "instrument", 2),
    "new and wrong": ([GOOD], [run(row(), row("decode/new-fa3", status="wrong"))], {}, "wrong-answer", 1),
    "torn": ([GOOD, GOOD], [GOOD, run()], {"paired": True}, "torn", 2),
    "in neither of a pair": ([GOOD, run()], [GOOD, run()], {"paired": True}, "within-threshold", 0),
    "in no head": ([GOOD], [run()], {"paired": True}, "vanished", 2),
}


@pytest.mark.parametrize(("base", "head", "held_to", "reason", "code"), SIDES.values(), ids=list(SIDES))
def test_what_became_of_a_case_decides_before_its_time(base, head, held_to, reason, code):
    judgement = judge(base, head, rules(**held_to))
    assert (judgement.cases[0].reason, judgement.exit_code) == (reason, code)
    if base == head == [BAD]:
        assert judgement.cases[0].sentence == "made: its answer is wrong in this run, and in the baseline"


def test_a_new_case_is_listed_and_is_nobodys_fault():
    judgement = judge([GOOD], [run(row(), row("decode/new-fa3"))], rules())
    assert [judged.name for judged in judgement.having(Verdict.NEW)] == ["decode/new-fa3"]
    assert (judgement.decided, judgement.exit_code) == (1, 0)


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


@pytest.mark.parametrize(
    ("row_of_head", "reason", "code", "code_allowed"),
    [
        (row(status="wrong"), "wrong-answer", 1, 1),
        (row(status="invalid"), "beyond-roof", 2, 2),
        (row(us=None), "no-time", 2, 2),
        (row(us=0.0), "no-time", 2, 2),
        (row(us=math.nan), "no-time", 2, 2),
        (row(us=1e-314), "no-time", 2, 2),
        (row(us=math.inf), "no-time", 2, 2),
        (sampled(90.0), "no-time", 2, 2),
        (row(refcheck="wrong"), "wrong-answer", 1, 1),
    ],
)
def test_rows_that_cannot_be_believed_are_invalid(row_of_head, reason, code, code_allowed):
    """Allowed, nothing is left that was compared."""
    assert verdict(row(), row_of_head) == ("INVALID", reason, code)
    assert verdict(row(), row_of_head, rules(allow="invalid")) == ("INVALID", reason, code_allowed)


@dataclass(frozen=True)
class Together:
    """A part of a row, as an extension declares one."""

    processes: int

    @property
    def conditions(self):
        return f"{self.processes} processes"


UNLIKE = [
    ("gpu", {"gpu_uuid": "GPU-1"}, {}),
    ("model", {"device_name": "NVIDIA H100"}, {}),
    ("instrument", {"instrument": "events"}, {}),
    ("cold-l2", {"cold_l2": "flush"}, {}),
    ("cuda-graph", {"cuda_graph": False}, {}),
    ("conditions", {"together": {"processes": 2}}, {}),
    ("seed", {"seed": 7}, {}),
    ("driver", {}, {"driver": "590"}),
]


@pytest.mark.parametrize(("facet", "info", "machine"), UNLIKE, ids=[name for name, *_ in UNLIKE])
def test_what_is_unlike_is_refused_by_name_and_can_be_allowed_by_it(facet, info, machine, monkeypatch):
    monkeypatch.setitem(DECLARED, "together", Together | None)
    base, head = [run(row())], [run(row(**info), machine={"driver": "580", **machine})]
    refused = judge(base, head, rules())
    assert (refused.cases[0].verdict, refused.cases[0].reason, refused.exit_code) == (Verdict.INVALID, facet, 2)
    assert "in the baseline" in refused.cases[0].sentence
    assert judge(base, head, rules(allow=facet)).exit_code == 0
    assert judge(base, head, rules(allow="missing,invalid")).exit_code == 2


def test_another_number_of_threads_is_refused_where_both_are_known():
    few, many, unknown = row(cpu_threads=1), row(cpu_threads=2), row()
    assert verdict(few, many)[:2] == ("INVALID", "threads")
    assert verdict(unknown, many)[0] == "SAME"


def test_another_card_costs_what_cards_are_apart():
    other = row(us=103.5, gpu_uuid="GPU-1", stddev=0)
    assert verdict(row(stddev=0), row(us=103.5, stddev=0))[0] == "SLOWER"
    assert verdict(row(stddev=0), other, rules(allow="gpu"))[0] == "SAME"


def test_another_library_is_compared():
    base, head = [run(row())], [run(row(), machine={"driver": "580", "flashinfer": "0.7.3"})]
    assert judge(base, head, rules()).exit_code == 0


def test_unknown_names_to_allow_say_which_are_known():
    with pytest.raises(AllowError, match=r"unknown name 'mising', did you mean missing\?.*known are model, gpu"):
        match.allowed("gpu,mising")
    with pytest.raises(AllowError, match="unknown name 'zzz', known are"):
        match.allowed("zzz")
    assert match.allowed("gpu, driver") == {"gpu", "driver"}
