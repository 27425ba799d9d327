"""Searches as pytest's user meets them: the table, the lines to paste, the finding's file, the settings file."""

import json
import re
import shlex

import pytest
from hypothesis import settings as hypothesis_settings

from pytest_flashinfer_perf.fuzz import findings

assert findings, "imported before pytester runs anything, which forgets what its runs import"

QUICK = ("--perf-device=cpu", "--hypothesis-profile=perf-ci", "-p", "no:cacheprovider")
PLANTED = """
import os
from pytest_flashinfer_perf.spec.routine import Built
from pytest_flashinfer_perf.routines.gemm.mm_bf16 import mm_bf16

@mm_bf16.backend("planted")
def _planted(p, x, how):
    def launch(x):
        if p.m > 40:
            os.abort()
        honest(x)
    honest = mm_bf16.backends["torch"].build(p, x, how).launch
    return Built(launch, "planted")
"""
TEST = """
import pytest

@pytest.mark.perf_cases("mm_bf16")
def test_mm(perf, case): perf(case)
"""


@pytest.fixture
def suite(pytester):
    pytester.makeconftest(PLANTED)
    pytester.makepyfile(test_mm=TEST)
    yield pytester
    from pytest_flashinfer_perf.routines.gemm.mm_bf16 import mm_bf16

    mm_bf16.backends.pop("planted", None)
    hypothesis_settings.load_profile("no deadline")


def test_a_crash_is_told_kept_and_seen_again(suite):
    search = ("--perf-fuzz", "--perf-backends=torch,planted,cublaslt", "--perf-findings=found")
    result = suite.runpytest(*QUICK, *search)
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "crashed: the process was ended by SIGABRT",
            "from pytest_flashinfer_perf.routines.gemm.mm_bf16 import MmBf16",
            "@example(MmBf16(m=45, n=1, k=1), 0)",
            "pytest --perf-fuzz '--perf-case=--routine mm_bf16 --backends planted --m 45 --n 1 --k 1 --random_seed 0'",
            "mm_bf16: shapes searched",
            "  torch *25/25 * 0   * 0 *",
            "  planted */25 * 1 *",
        ],
    )
    [finding] = (suite.path / "found").glob("mm_bf16-*-crashed-*.json")
    statistics = json.loads((suite.path / "found" / "search-mm_bf16-torch.json").read_text())
    assert statistics["checked"] == sum(statistics["drawn"]["m"].values()) == 25
    assert statistics["versions"]["torch"]
    line = next(line for line in result.outlines if line.startswith("pytest --perf-fuzz '--perf-case"))
    for again in (shlex.split(line)[1:], [str(finding)]):
        seen = suite.runpytest(*QUICK, "--import-mode=importlib", *again)
        seen.assert_outcomes(failed=1)
        seen.stdout.fnmatch_lines(["crashed: the process was ended by SIGABRT"])


QUARANTINE = """[quarantine]
"--routine mm_bf16 --backends planted" = { reason = "it aborts", link = "https://example.org/1" }
"""


def test_what_is_quarantined_is_skipped_and_counted_in_every_run(suite):
    suite.makefile(".toml", **{"flashinfer-perf": QUARANTINE})
    asked = "--routine mm_bf16 --m 64 --n 1 --k 1 --backends planted"
    for fuzz in ([], ["--perf-fuzz"]):
        result = suite.runpytest(*QUICK, "--perf-iters=2", f"--perf-case={asked}", "test_mm.py", *fuzz)
        result.assert_outcomes(skipped=1)
        result.stdout.fnmatch_lines(["1 case skipped", "    1  quarantined: it aborts (https://example.org/1)"])


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('"mm_bf17/*" = { reason = "r", link = "l" }', "unknown name 'mm_bf17', did you mean mm_bf16?"),
        ('"--routine mm_bf17" = { reason = "r", link = "l" }', "routine: unknown name 'mm_bf17', did you mean"),
        ('"--routine mm_bf16 --mm 3" = { reason = "r", link = "l" }', "unknown flag --mm"),
        ('"mm_bf16/*" = { reason = "r" }', "needs a link"),
        ('"mm_bf16/*" = { link = "l" }', "needs a reason"),
        ('"mm_bf16/*" = { reason = "r", link = "l", why = "w" }', "unknown name 'why', known are reason, link"),
    ],
)
def test_a_quarantine_that_cannot_be_understood_is_an_error(suite, line, sentence):
    suite.makefile(".toml", **{"flashinfer-perf": f"[quarantine]\n{line}\n"})
    result = suite.runpytest("--collect-only")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert sentence in result.stderr.str()
    assert "flashinfer-perf.toml: [quarantine]" in result.stderr.str()


def test_a_file_that_is_no_finding_any_more_says_so(suite):
    suite.path.joinpath("old.json").write_text('{"flashinfer_perf_finding": 0}')
    suite.path.joinpath("other.json").write_text("{}")
    result = suite.runpytest(*QUICK, "old.json")
    result.stdout.fnmatch_lines(["*old.json: must be a finding of schema 1 with a line, got schema 0*"])
    assert suite.runpytest(*QUICK, "other.json").ret == pytest.ExitCode.USAGE_ERROR


def test_flags_that_nobody_understands_fail_the_search(suite):
    result = suite.runpytest(*QUICK, "--perf-fuzz", "--perf-backends=torch", "--perf-fuzz-flags=--mm 3")
    result.assert_outcomes(failed=1)
    assert re.search(r"unknown flag --mm", result.stdout.str())


def test_own_kernels_have_no_shapes_to_search(pytester):
    pytester.makepyfile("def test_own(perf): perf.time(abs, -1)")
    result = pytester.runpytest("--perf-fuzz", "--perf-device=cpu", "-rs")
    result.assert_outcomes(skipped=1)
