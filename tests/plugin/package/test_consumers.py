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
OUTCOMES = {"passed": 3, "skipped": 1}
either = pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])


@pytest.fixture
def own(session):
    """A session of the tests above, beside others."""
    return lambda *options, test_own=OWN, **more: session(*options, test_own=test_own, **more)


def properties(path):
    """As junit's readers have them: strings beside each test."""
    tests = ET.parse(path).getroot().iter("testcase")
    return {test.get("name"): {p.get("name"): p.get("value") for p in test.iter("property")} for test in tests}


@either
def test_junit_shows_a_rows_numbers_and_the_line_of_a_failure_that_has_no_traceback(own, workers):
    """As readers look for it: a path and a number behind a space. The reason in the JSON has no line."""
    wrong = f"{OWN}\ndef test_wrong(perf):\n    perf.time(torch.neg, torch.ones(8), reference=torch.ones(8))\n"
    done = own(*workers, "--junitxml=run.xml", test_own=wrong)
    shown = properties(done.folder / "run.xml")
    assert list(shown["test_neg"]) == ["perf_median_us", "perf_tflops", "perf_tb_per_sec", "perf_status"]
    assert float(shown["test_neg"]["perf_median_us"]) == 1000
    assert list(shown["test_without_work"]) == ["perf_median_us", "perf_status"]
    assert shown["test_skips"] == shown["test_plain"] == {}
    [failure] = ET.parse(done.folder / "run.xml").getroot().iter("failure")
    assert failure.text.splitlines()[-1] == f"  at test_own.py:{len(wrong.strip().splitlines())}"
    told = done.document["flashinfer_perf"]["unmeasured"]
    assert ["at test_own.py" in one["reason"] for one in told] == [False, False]


def test_a_failure_of_a_test_that_is_made_for_a_routine_names_no_line_of_another_file(session):
    made = "from pytest_flashinfer_perf.plugin import cases\nglobals().update(cases.family_tests('gemm'))\n"
    options = ["--perf-suite=smoke", "--perf-strict-skips=*", "--junitxml=run.xml", "-k", "bmm_bf16 and cudnn"]
    done = session(*options, test_made=made)
    failures = [one.text for one in ET.parse(done.folder / "run.xml").getroot().iter("failure")]
    assert failures
    assert not [text for text in failures if "  at " in text]


CODSPEED = """
class Active:
    is_codspeed_enabled = {enabled}

def pytest_configure(config):
    config.pluginmanager.register(Active(), "codspeed_plugin")
"""


@pytest.mark.parametrize(("enabled", "outcomes"), [(True, {"passed": 1, "skipped": 3}), (False, OUTCOMES)])
def test_codspeed_that_is_active_has_its_session_and_ours_are_skipped_with_the_remedy(own, enabled, outcomes):
    """It registers itself so: src/pytest_codspeed/plugin.py of https://github.com/CodSpeedHQ/pytest-codspeed, 5.0.4."""
    done = own("-rs", conftest=CODSPEED.format(enabled=enabled))
    assert done.outcomes == outcomes
    if enabled:
        done.says("SKIPPED*pytest-codspeed is active (*: run these with -p no:codspeed")
        done.says("nothing was measured, for the reasons above")


GIVEN = """
from hypothesis import given, strategies

@given(strategies.integers())
def test_drawn(drawn): assert drawn == drawn

def test_sorted(benchmark): benchmark.pedantic(sorted, args=[[2, 1]])
"""


@either
def test_hypothesis_shows_its_statistics_and_plain_benchmarks_their_profile(session, workers):
    options = ("--hypothesis-show-statistics", "--benchmark-cprofile=tottime")
    done = session(*workers, *options, test_given=GIVEN, process=True)
    assert done.outcomes == {"passed": 2}
    done.says("*Hypothesis Statistics*", "test_given.py::test_drawn:")
    assert [name for name, row in done.rows.items() if row.get("cprofile")] == ([] if workers else ["test_sorted"])


def test_a_profile_is_never_of_a_placeholder(own):
    done = own("--benchmark-cprofile=tottime")
    assert done.outcomes == OUTCOMES
    assert not [row for row in done.rows.values() if row.get("cprofile")]
    done.says("--benchmark-cprofile: nothing of tests with perf,*")
