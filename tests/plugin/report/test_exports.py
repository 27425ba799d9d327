"""`flashinfer-perf export`: nothing that a run says is lost on the way to CSV."""

import csv
import io
import json

import pytest
import reports

from pytest_flashinfer_perf import cli

SKIPPED = {**reports.identity("fa3"), "test": "t::fa3", "outcome": "skipped", "reason": 'needs "9.0"\nthis is 8.0'}
NOISY = reports.benchmark(batch=32, us=20.0, status="noisy", tflops=None, sol_pct=None)


@pytest.fixture
def export(tmp_path, monkeypatch, capsys):
    """The exit code, the lines of CSV and what is said of runs, each made of rows and of cases without one."""
    monkeypatch.chdir(tmp_path)

    def export(*words, **runs):
        for name, (rows, left, more) in runs.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(reports.document(*rows, left=left, **more)))
        code = cli.main(["export", *(f"{name}.json" for name in runs), *words])
        said = capsys.readouterr()
        return code, list(csv.DictReader(io.StringIO(said.out))), said.err

    return export


RUN = ((reports.benchmark(us=10.0), NOISY), [SKIPPED], {})
LATER = ((reports.benchmark(us=11.0),), [], {"when": "2026-11-21T10:00:00+00:00"})


def test_csv_has_a_line_for_each_case_measured_or_not(export):
    code, (fine, noisy, skipped), said = export(run=RUN)
    assert code == 0
    assert said == "flashinfer-perf export: 1 case noisy\nflashinfer-perf export: 1 case without a time\n"
    assert float(fine["median_us"]) == 10.0
    assert (fine["schema"], fine["status"], noisy["status"], noisy["tflops"]) == ("1", "ok", "noisy", "")
    assert (skipped["status"], skipped["median_us"], skipped["reason"]) == ("skipped", "", SKIPPED["reason"])


def test_csv_has_many_runs_with_the_time_and_the_commit_of_each(export):
    code, rows, said = export("--to", "csv", later=LATER, run=RUN)
    assert code == 0
    assert [row["median_us"] for row in rows] == ["10.0", "20.0", "", "11.0"]
    assert [row["time"] for row in rows] == ["2026-11-20T10:00:00+00:00"] * 3 + ["2026-11-21T10:00:00+00:00"]
    assert {row["commit"] for row in rows} == {"0123456789abcdef"}
    assert said.startswith("flashinfer-perf export: run.json: 1 case noisy\n")
    code, rows, said = export("run.json", run=RUN)
    assert (code, rows) == (2, [])
    assert "is the same run as" in said


def test_a_run_without_rows_is_an_error_and_writes_nothing(export, tmp_path):
    code, _, said = export("-o", "out", empty=((), [SKIPPED], {}))
    assert code == 2
    assert said == "flashinfer-perf export: empty.json has no row to export: 1 case without a time\n"
    assert not (tmp_path / "out").exists()


def test_a_case_of_two_cards_and_one_that_a_run_has_twice_keep_names_of_their_own(export):
    twice = (reports.benchmark(), reports.benchmark(us=11.0, gpu_uuid="GPU-other"), reports.benchmark())
    _, rows, _ = export(twice=(twice, [], {}))
    case = f"{reports.identity()['case']} on NVIDIA H200 GPU"
    assert [row["case"] for row in rows] == [f"{case}-0a1b2c3d", f"{case}-other", f"{case}-0a1b2c3d (2)"]
