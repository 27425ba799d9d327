"""`flashinfer-perf export`: the rules of each format, and that nothing that a run says is lost on the way."""

import csv
import io
import json
import math
import re

import pytest
import reports
from prometheus_client.parser import text_string_to_metric_families

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.report.exports import FORMATS, OF_MANY, WITHOUT_TIME

SKIPPED = {**reports.identity("fa3"), "test": "t::fa3", "outcome": "skipped", "reason": 'needs "9.0"\nthis is 8.0'}
NOISY = "BatchDecodeWithPagedKVCacheWrapper/llama-b32-s1024-fa2"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A case that is fine, one that is noisy, one that has no time."""
    monkeypatch.chdir(tmp_path)
    rows = (reports.benchmark(us=10.0), reports.benchmark(batch=32, us=20.0, status="noisy", tflops=None, sol_pct=None))
    made = reports.document(*rows, left=[SKIPPED])
    (tmp_path / "run.json").write_text(json.dumps(made))
    return tmp_path


@pytest.fixture
def exported(run, capsys):
    def exported(to):
        assert cli.main(["export", str(run / "run.json"), "--to", to]) == 0
        said = capsys.readouterr()
        assert said.err == "flashinfer-perf export: 1 case noisy\nflashinfer-perf export: 1 case without a time\n"
        return said.out

    return exported


def test_csv_has_a_line_for_each_case_measured_or_not(exported):
    fine, noisy, skipped = csv.DictReader(io.StringIO(exported("csv")))
    assert float(fine["median_us"]) == 10.0
    assert (fine["schema"], fine["status"], noisy["status"], noisy["tflops"]) == ("1", "ok", "noisy", "")
    assert (skipped["status"], skipped["median_us"], skipped["reason"]) == ("skipped", "", SKIPPED["reason"])


def test_csv_has_many_runs_with_the_time_and_the_commit_of_each(run, capsys):
    later = reports.document(reports.benchmark(us=11.0), when="2026-11-21T10:00:00+00:00")
    (run / "later.json").write_text(json.dumps(later))
    assert cli.main(["export", "later.json", "run.json", "--to", "csv"]) == 0
    said = capsys.readouterr()
    rows = list(csv.DictReader(io.StringIO(said.out)))
    assert [row["median_us"] for row in rows] == ["10.0", "20.0", "", "11.0"]
    assert [row["time"] for row in rows] == ["2026-11-20T10:00:00+00:00"] * 3 + ["2026-11-21T10:00:00+00:00"]
    assert {row["commit"] for row in rows} == {"0123456789abcdef"}
    assert said.err.startswith("flashinfer-perf export: run.json: 1 case noisy\n")
    assert cli.main(["export", "run.json", "run.json", "--to", "csv"]) == 2
    assert "is the same run as" in capsys.readouterr().err


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("to", sorted({*FORMATS} - {*OF_MANY}))
def test_other_formats_have_a_single_run(to, capsys):
    assert cli.main(["export", "run.json", "run.json", "--to", to]) == 2
    expected = f"flashinfer-perf export: --to {to} has a single run: export 2 runs one by one, or --to csv\n"
    assert capsys.readouterr().err == expected


def is_text(values):
    return all(isinstance(value, str) for value in values.values())


def test_pytorchs_database_gets_a_record_for_each_metric(exported):
    """As `convert_to_pytorch_benchmark_format` of vLLM writes it; the database has maps of text to text."""
    *records, without = json.loads(exported("pytorch"))
    for record in records:
        benchmark, model, metric = record["benchmark"], record["model"], record["metric"]
        assert record.keys() == {"benchmark", "model", "metric", "dependencies"}
        assert benchmark["name"] == "flashinfer-perf"
        assert all(map(is_text, (benchmark["extra_info"], model["extra_info"], metric["extra_info"])))
        assert all(isinstance(value, float) and math.isfinite(value) for value in metric["benchmark_values"])
        assert len(metric["benchmark_values"]) == 1
        assert benchmark["extra_info"] == {"device": "cuda", "arch": "NVIDIA H200"}
        assert record["dependencies"]["flashinfer"] == {"version": "0.7.2"}
    fine = [r["metric"] for r in records if r["model"]["name"] != NOISY]
    assert [metric["name"] for metric in fine] == ["median_us", "tflops", "tb_per_sec", "sol_pct"]
    assert (fine[0]["benchmark_values"], fine[0]["extra_info"]["status"]) == ([10.0], "ok")
    noisy = [r["metric"] for r in records if r["model"]["name"] == NOISY]
    assert [metric["name"] for metric in noisy] == ["median_us", "tb_per_sec"]
    assert {metric["extra_info"]["status"] for metric in noisy} == {"noisy"}
    assert (without["model"]["name"], without["metric"]["benchmark_values"]) == (WITHOUT_TIME, [1])
    assert SKIPPED["reason"] in next(iter(without["metric"]["extra_info"].values()))


def test_github_action_benchmark_gets_entries_of_which_smaller_is_better(exported):
    """`customSmallerIsBetter`: https://github.com/benchmark-action/github-action-benchmark/blob/v1.22.0/README.md"""
    said = json.loads(exported("github-action-benchmark"))
    for entry in said:
        assert {"name", "unit", "value"} <= set(entry) <= {"name", "unit", "value", "range", "extra"}
        assert math.isfinite(entry["value"])
    fine, noisy, without = said
    assert (fine["value"], fine["unit"], noisy["name"]) == (10.0, "us", NOISY)
    assert fine["range"] == "± 0.1 us"
    assert {"schema 1", "status ok"} < set(fine["extra"].splitlines())
    assert any(line.startswith("tflops ") for line in fine["extra"].splitlines())
    assert "status noisy" in noisy["extra"].splitlines()
    assert (without["name"], without["value"]) == (WITHOUT_TIME, 1)
    assert SKIPPED["reason"] in without["extra"]


def test_prometheus_gets_a_series_for_each_case(exported):
    """Types that the classic text format has, each said once: node_exporter drops the whole file for another."""
    text = exported("prometheus")
    typed = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    assert {kind for _, kind in typed} == {"gauge"}
    assert {line.split()[1] for line in text.splitlines() if line.startswith("#")} == {"HELP", "TYPE"}
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert [name for name, _ in typed] == list(families)
    assert all({sample.name for sample in samples} == {name} for name, samples in families.items())
    [info] = families["flashinfer_perf_export_info"]
    assert (info.labels, info.value) == ({"schema": "1"}, 1)
    medians = {sample.labels["case"]: sample.value for sample in families["flashinfer_perf_median_seconds"]}
    assert len(medians) == 2
    assert medians[NOISY] == pytest.approx(20e-6)
    assert [sample.labels["status"] for sample in families["flashinfer_perf_status"]] == ["ok", "noisy", "skipped"]
    assert len(families["flashinfer_perf_operations_per_second"]) == 1


@pytest.mark.parametrize("to", FORMATS)
def test_a_run_without_rows_is_an_error_and_writes_nothing(run, to, capsys):
    (run / "empty.json").write_text(json.dumps(reports.document(left=[SKIPPED])))
    assert cli.main(["export", "empty.json", "--to", to, "-o", "out"]) == 2
    assert capsys.readouterr().err == "flashinfer-perf export: empty.json has no row to export: 1 case without a time\n"
    assert not (run / "out").exists()


@pytest.mark.parametrize("to", FORMATS)
def test_a_case_of_two_cards_and_one_that_a_run_has_twice_keep_names_of_their_own(run, to):
    other = reports.benchmark(us=11.0, gpu_uuid="GPU-other")
    twice = (reports.benchmark(), other, reports.benchmark())
    (run / "twice.json").write_text(json.dumps(reports.document(*twice)))
    assert cli.main(["export", "twice.json", "--to", to, "-o", "out"]) == 0
    text, case = (run / "out").read_text(), reports.identity()["case"]
    for name in (f"{case} on NVIDIA H200 GPU-0a1b2c3d", f"{case} on NVIDIA H200 GPU-other"):
        assert name in text
    assert f"{case} on NVIDIA H200 GPU-0a1b2c3d (2)" in text
