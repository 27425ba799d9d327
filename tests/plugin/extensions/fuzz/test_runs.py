"""Searches as pytest's user meets them: the table, the lines to paste, the finding's file, the settings file."""

import pytest
from hypothesis import settings as hypothesis_settings

from pytest_flashinfer_perf.extensions.fuzz import findings

assert findings, "imported before pytester runs anything, which forgets what its runs import"

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
def search(session):
    """A session that searches, with a backend that crashes."""

    def run(*options, **files):
        profile = ("--hypothesis-profile=perf-ci", "--import-mode=importlib")
        return session(*profile, *options, conftest=PLANTED, test_mm=TEST, **files)

    yield run
    from pytest_flashinfer_perf.routines.gemm.mm_bf16 import mm_bf16

    mm_bf16.backends.pop("planted", None)
    hypothesis_settings.load_profile("no deadline")


def test_a_crash_is_told_kept_and_seen_again(search):
    done = search("--perf-fuzz", "--perf-backends=torch,planted,cublaslt", "--perf-findings=found", "test_mm.py")
    assert (done.code, done.outcomes) == (pytest.ExitCode.TESTS_FAILED, {"passed": 1, "failed": 1, "skipped": 1})
    done.says(
        "crashed: the process was ended by SIGABRT",
        "pytest --perf-fuzz '--perf-case=--routine mm_bf16 --backends planted --m 45 --n 1 --k 1 --random_seed 0'",
        "mm_bf16: shapes searched",
        "  torch *25/25 * 0   * 0",
        "  planted */25 * 1",
    )
    [finding] = (done.folder / "found").glob("mm_bf16-*-crashed-*.json")
    again = search(str(finding))
    assert again.outcomes == {"failed": 1}
    again.says("crashed: the process was ended by SIGABRT")


QUARANTINE = """[quarantine]
"--routine mm_bf16 --backends planted" = { reason = "it aborts", link = "https://example.org/1" }
"""


@pytest.mark.parametrize("fuzz", [(), ("--perf-fuzz",)])
def test_what_is_quarantined_is_skipped_and_counted_in_every_run(search, pytester, fuzz):
    pytester.makefile(".toml", **{"flashinfer-perf": QUARANTINE})
    done = search("--perf-case=--routine mm_bf16 --m 64 --n 1 --k 1 --backends planted", "test_mm.py", *fuzz)
    assert done.outcomes == {"skipped": 1}
    done.says("1 case skipped", "    1  quarantined: it aborts (https://example.org/1)")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('"mm_bf17/*" = { reason = "r", link = "l" }', "unknown name 'mm_bf17', did you mean mm_bf16?"),
        ('"--routine mm_bf17" = { reason = "r", link = "l" }', "routine: unknown name 'mm_bf17', did you mean"),
        ('"--routine mm_bf16 --mm 3" = { reason = "r", link = "l" }', "unknown flag --mm"),
    ],
)
def test_a_quarantine_that_cannot_be_understood_is_an_error(search, pytester, line, sentence):
    pytester.makefile(".toml", **{"flashinfer-perf": f"[quarantine]\n{line}\n"})
    done = search("--collect-only", "test_mm.py")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert sentence in done.err
    assert "flashinfer-perf.toml: [quarantine]" in done.err


def test_a_file_that_is_no_finding_any_more_says_so(search, pytester):
    (pytester.path / "old.json").write_text('{"flashinfer_perf_finding": 0}')
    (pytester.path / "other.json").write_text("{}")
    search("old.json").says("*old.json: must be a finding of schema 1 with a line, got schema 0*")
    assert search("other.json").code == pytest.ExitCode.USAGE_ERROR


def test_flags_that_nobody_understands_fail_the_search_and_own_kernels_have_no_shapes(search):
    options = ("--perf-fuzz", "--perf-backends=torch", "--perf-fuzz-flags=--mm 3", "-rs")
    done = search(*options, test_own="def test_own(perf): perf.time(abs, -1)")
    assert done.outcomes == {"failed": 1, "skipped": 1}
    assert "unknown flag --mm" in done.out
