"""What this project writes, as the tools read it that it is for; the table of them is in docs/formats.md."""

import xml.etree.ElementTree as ET

import pytest

OWN = """
import pytest
import torch

def test_neg(perf): perf.time(torch.neg, torch.ones(1 << 12), flops=1 << 12, bytes=1 << 15)
def test_without_work(perf): perf.time(torch.neg, torch.ones(8))
def test_skips(perf): pytest.skip("not here")
def test_plain(): pass
"""
QUICK = ("--perf-device=cpu", "--perf-iters=3", "--perf-warmup=0", "-p", "no:cacheprovider")


@pytest.fixture
def own(pytester):
    pytester.makepyfile(test_own=OWN)
    return pytester


def properties(path):
    """As junit's readers have them: strings beside each test."""
    tests = ET.parse(path).getroot().iter("testcase")
    return {test.get("name"): {p.get("name"): p.get("value") for p in test.iter("property")} for test in tests}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_junit_shows_a_rows_numbers_beside_its_test(own, workers):
    own.runpytest(*QUICK, *workers, "--junitxml=run.xml", "--benchmark-json=run.json").assert_outcomes(
        passed=3, skipped=1
    )
    shown = properties(own.path / "run.xml")
    assert list(shown["test_neg"]) == ["perf_median_us", "perf_tflops", "perf_tb_per_sec", "perf_status"]
    assert float(shown["test_neg"]["perf_median_us"]) > 0
    assert list(shown["test_without_work"]) == ["perf_median_us", "perf_status"]
    assert shown["test_skips"] == shown["test_plain"] == {}


def test_junit_shows_them_of_a_test_that_is_not_run_again(own):
    own.runpytest(*QUICK, "--benchmark-json=run.json", "--junitxml=first.xml")
    own.runpytest(*QUICK, "--benchmark-json=run.json", "--junitxml=again.xml", "--perf-resume")
    first, again = (properties(own.path / f"{name}.xml") for name in ("first", "again"))
    assert again["test_neg"] == first["test_neg"] != {}


def test_a_plain_run_writes_its_tables_to_githubs_summary(own, monkeypatch):
    summary = own.path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    own.runpytest(*QUICK).assert_outcomes(passed=3, skipped=1)
    text = summary.read_text()
    assert text.startswith("before\n### FlashInfer performance: ")
    assert r"| test\_own.py::test\_neg |" in text
    assert "| 1 | not here |" in text
    own.runpytest(*QUICK, "--collect-only")
    own.runpytest(*QUICK, "-k", "plain")
    assert summary.read_text() == text


def test_a_summary_that_cannot_be_written_is_said_and_costs_nothing(own, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(own.path / "test_own.py" / "summary.md"))
    done = own.runpytest(*QUICK)
    assert done.ret == pytest.ExitCode.OK
    done.stdout.fnmatch_lines(["::warning title=no GITHUB_STEP_SUMMARY::*Not a directory*"])
