"""`flashinfer-perf export`: the rules of each format, and that nothing that a run says is lost on the way."""

import csv
import io
import json
import math
import re

import pytest
import reports

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.report.exports import FORMATS, WITHOUT_TIME

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


LABEL = r'\w+="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"(\w+)\{{({LABEL}(?:,{LABEL})*)\}} (\S+)")


def test_prometheus_gets_a_series_for_each_case(exported):
    """The text format of https://prometheus.io/docs/specs/om/open_metrics_spec/"""
    *lines, end = exported("openmetrics").splitlines()
    assert end == "# EOF"
    families, series = {}, {}
    for line in lines:
        if line.startswith("#"):
            kind, name, said = re.fullmatch(r"# (TYPE|UNIT|HELP) (\w+) (.+)", line).groups()
            assert kind != "UNIT" or name.endswith(f"_{said}")
            assert not (kind == "TYPE" and name in families)
            current = families.setdefault(name, {})
            current[kind] = said
        else:
            name, labels, value = SAMPLE.fullmatch(line).groups()
            assert families.get(name.removesuffix("_info")) is current, "a family's samples stand together"
            assert (name, labels) not in series
            series[name, labels] = float(value)
    case = f'case="{NOISY}"'
    [median] = [v for (name, labels), v in series.items() if name.endswith("microseconds") and case in labels]
    assert median == 20.0
    assert series["flashinfer_perf_export_info", 'schema="1"'] == 1
    statuses = [re.search('status="(.+)"', labels)[1] for name, labels in series if name.endswith("_status")]
    assert statuses == ["ok", "noisy", "skipped"]


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
