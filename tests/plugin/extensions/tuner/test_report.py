"""What a report shows, and its file."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import row_documents
from schemas import faults
from tuner_runs import BEST, LIMITS, RAISES, WRONG, case, planted, report_of

from pytest_flashinfer_perf.extensions.tuner import found, judge, report
from pytest_flashinfer_perf.extensions.tuner.found import LeftOut, TacticFound, Transfer
from pytest_flashinfer_perf.extensions.tuner.race import MOST_ROUNDS
from pytest_flashinfer_perf.extensions.tuner.sets import Regret
from pytest_flashinfer_perf.files import write_json


def test_a_member_of_the_best_set_that_may_be_far_behind_wants_more_rounds():
    """As a cuBLAS tactic on an H200: with few rounds 5 % behind was not yet surely slower."""
    members = {"a": (0.0, 0.0, 0.0), "b": (0.0, 0.05, 0.087), "c": (0.0, 0.01, 0.02)}
    sentences = {1: "more rounds would tell: raise --budget", MOST_ROUNDS: "they differ too little to be told apart"}
    for number, sentence in sentences.items():
        seconds = (1e-5,) * number
        tactics = tuple(
            TacticFound(name, "best", seconds=seconds, regret=Regret(*one)) for name, one in members.items()
        )
        shown = report.of_case(case(1, [], tactics=tactics, best=tuple(members), ways={"default": "a"}))
        unsure = [line for line in shown if "best, or not" in line]
        assert unsure == [f"  best, or not     b: +5.0 % (0.0 to 8.7), {sentence}"]


def test_the_terminal_and_the_tables_hide_no_failure():
    one, transfer = planted()[0], Transfer("mine/m4", "mine/m8", "m", Regret(0.1, 0.2, 0.3))
    findings, lost = list(judge.findings([one], LIMITS)), LeftOut("mine/m9", "failed", "no memory")
    made = report_of(one, found=findings, left_out=[lost], transfers=[transfer])
    tables = report.markdown(made)
    assert tables.count("| FAIL |") == len([each for each in findings if each.fails]) >= 3
    for line in (
        f"| wrong | {one.case} | {WRONG} | output 0: 12 of 16 differ |",
        f"| fails | {one.case} | {RAISES} | RuntimeError: no such kernel |",
        "| failed | mine/m9 | no memory |",
        "| mine/m4 | mine/m8 | m | +20.0 % (10.0 to 30.0) |",
    ):
        assert line in tables
    shown = list(report.lines(made))
    for line in (
        "                   outside the best set: 2, flips between sets: 2",
        f"  wrong            {WRONG}: output 0: 12 of 16 differ",
        "failed mine/m9: no memory",
        "the best of mine/m4 used in mine/m8 (m differs): +20.0 % (10.0 to 30.0)",
    ):
        assert line in shown


def test_a_name_makes_no_line_of_a_table():
    one = planted()[0]
    odd = replace(one.tactic(BEST), tactic="\x1b[31mred\nFAIL | x")
    tables = report.markdown(report_of(replace(one, tactics=(odd, one.tactic(WRONG)), best=(odd.tactic,))))
    assert "\x1b" not in tables
    assert not any(line.startswith("FAIL") for line in tables.splitlines())


def test_a_file_is_what_the_schema_says_and_is_read_again(tmp_path):
    cases = planted()[:2]
    made = report_of(*cases, found=judge.findings(cases, LIMITS), left_out=(LeftOut("a", "failed", "x"),))
    path = tmp_path / "r.json"
    write_json(path, asdict(made))
    schema = json.loads(Path(found.__file__).with_name("tune_report.schema.json").read_text())
    assert schema == row_documents.tune_report(), "python tools/row_documents.py writes it"
    document = json.loads(path.read_text())
    assert list(faults(schema, document, "report")) == []
    assert list(faults(schema, {**document, "cases": [{}]}, "report"))
    assert found.read(path, "--base") == made
    path.write_text("{}")
    with pytest.raises(found.ReportError, match="is no file of tune-report"):
        found.read(path, "--base")


@pytest.mark.parametrize(
    "broken", [{"ways": {}}, {"best": ("none",)}, {"best": ()}, {"seconds": ()}, {"seconds": (0.0,)}]
)
def test_a_base_that_does_not_fit_itself_is_refused(tmp_path, broken):
    one = planted()[0]
    if "seconds" in broken:
        broken = {"tactics": tuple(replace(each, **broken) for each in one.tactics)}
    write_json(tmp_path / "r.json", asdict(report_of(replace(one, **broken))))
    with pytest.raises(found.ReportError, match=f"{one.case}: its ways, times and regrets do not fit: write it anew"):
        found.read(tmp_path / "r.json", "--base")


def test_tactics_that_no_case_has_are_said_to_have_had_no_effect(session):
    done = session("--perf-tactics=0.1", test_it="def test_it(perf):\n    perf.time(int)\n")
    done.says("--perf-tactics had no effect: none of the measured cases has a choice of tactics")
