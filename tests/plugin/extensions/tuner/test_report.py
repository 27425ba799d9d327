"""What a report shows, and its file."""

import json
from dataclasses import asdict
from pathlib import Path

import row_documents
from schemas import faults
from tuner_runs import LIMITS, RAISES, WRONG, planted, report_of

from pytest_flashinfer_perf.extensions.tuner import judge, report, results
from pytest_flashinfer_perf.extensions.tuner.results import LeftOut
from pytest_flashinfer_perf.files import write_json


def test_the_terminal_hides_no_failure():
    one, lost = planted()[0], LeftOut("mine/m9", "failed", "no memory")
    findings = list(judge.findings([one], LIMITS))
    shown = list(report.lines(report_of(one, found=findings, left_out=[lost])))
    assert len([line for line in shown if line.startswith(f"FAIL {one.case}: ")]) >= 2
    for line in (
        "                   outside the best set: 2",
        f"  wrong            {WRONG}: output 0: 12 of 16 differ",
        f"  fails            {RAISES}: RuntimeError: no such kernel",
        "failed mine/m9: no memory",
    ):
        assert line in shown


def test_a_file_is_what_the_schema_says(tmp_path):
    cases = planted()[:2]
    made = report_of(*cases, found=judge.findings(cases, LIMITS), left_out=(LeftOut("a", "failed", "x"),))
    path = tmp_path / "r.json"
    write_json(path, asdict(made))
    schema = json.loads(Path(results.__file__).with_name("tune_report.schema.json").read_text())
    assert schema == row_documents.tune_report(), "python tools/row_documents.py writes it"
    document = json.loads(path.read_text())
    assert list(faults(schema, document, "report")) == []
    assert list(faults(schema, {**document, "cases": [{}]}, "report"))
