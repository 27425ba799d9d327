"""What this project writes, as the tools read it that it is for; the table of them is in docs/formats.md."""

import json
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


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_junit_names_the_line_of_a_failure_that_has_no_traceback(own, workers):
    """As readers of JUnit look for it: a path and a number behind a space. The reason in the JSON has no line."""
    own.makepyfile(
        test_own=f"{OWN}\ndef test_wrong(perf):\n    perf.time(torch.neg, torch.ones(8), reference=torch.ones(8))\n"
    )
    own.runpytest(*QUICK, *workers, "--junitxml=run.xml", "--benchmark-json=run.json", "-k", "wrong or skips")
    [failure] = ET.parse(own.path / "run.xml").getroot().iter("failure")
    number = len((own.path / "test_own.py").read_text().splitlines())
    assert failure.text.splitlines()[-1] == f"  at test_own.py:{number}"
    told = json.loads((own.path / "run.json").read_text())["flashinfer_perf"]["unmeasured"]
    assert ["at test_own.py" in one["reason"] for one in told] == [False, False]


def test_a_failure_of_a_test_that_is_made_for_a_routine_names_no_line_of_another_file(own):
    made = "from pytest_flashinfer_perf.plugin import cases\nglobals().update(cases.family_tests('gemm'))\n"
    own.makepyfile(test_made=made)
    own.runpytest(
        *QUICK,
        "--perf-suite=smoke",
        "--perf-strict-skips=*",
        "--junitxml=run.xml",
        "test_made.py",
        "-k",
        "bmm_bf16 and cudnn",
    )
    failures = [one.text for one in ET.parse(own.path / "run.xml").getroot().iter("failure")]
    assert failures
    assert not [text for text in failures if "  at " in text]


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


CODSPEED = """
class Active:
    is_codspeed_enabled = {enabled}

def pytest_configure(config):
    config.pluginmanager.register(Active(), "codspeed_plugin")
"""


@pytest.mark.parametrize("enabled", [True, False])
def test_codspeed_that_is_active_has_its_session_and_ours_are_skipped_with_the_remedy(own, enabled):
    """It registers itself so: src/pytest_codspeed/plugin.py of https://github.com/CodSpeedHQ/pytest-codspeed, 5.0.4."""
    own.makeconftest(CODSPEED.format(enabled=enabled))
    done = own.runpytest(*QUICK, "-rs")
    if enabled:
        done.assert_outcomes(passed=1, skipped=3)
        done.stdout.fnmatch_lines(["SKIPPED*pytest-codspeed is active (*: run these with -p no:codspeed"])
        done.stdout.fnmatch_lines(["nothing was measured, for the reasons above"])
    else:
        done.assert_outcomes(passed=3, skipped=1)


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_hypothesis_shows_its_statistics_where_a_test_uses_it(own, workers):
    own.makepyfile(
        test_given="""
        from hypothesis import given, strategies

        @given(strategies.integers())
        def test_drawn(drawn): assert drawn == drawn
    """
    )
    done = own.runpytest_subprocess(*QUICK, *workers, "--hypothesis-show-statistics")
    done.assert_outcomes(passed=4, skipped=1)
    done.stdout.fnmatch_lines(["*Hypothesis Statistics*", "test_given.py::test_drawn:"])


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_a_profile_is_of_plain_benchmarks_and_never_of_a_placeholder(own, workers):
    own.makepyfile(test_plain="def test_sorted(benchmark): benchmark.pedantic(sorted, args=[[2, 1]])")
    done = own.runpytest(*QUICK, *workers, "--benchmark-cprofile=tottime", "--benchmark-json=run.json")
    done.assert_outcomes(passed=4, skipped=1)
    rows = json.loads((own.path / "run.json").read_text())["benchmarks"]
    profiled = [row["name"] for row in rows if row.get("cprofile")]
    assert profiled == ([] if workers else ["test_sorted"])
    done.stdout.fnmatch_lines(["--benchmark-cprofile: nothing of tests with perf,*"])
