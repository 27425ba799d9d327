"""What the processes that a session starts do with its options, from the command line or an ini file."""

import pytest
from declared import here
from decode_cases import QUICK, TEST

from pytest_flashinfer_perf.plugin import options
from pytest_flashinfer_perf.session.stash import CONFIRMS
from pytest_flashinfer_perf.settings.option import Child

ONCE = ("--perf-gate=nothing.json", "--perf-gate-strict", "--perf-gate-allow=gpu", "--perf-save-baseline=base")
TAKES = "import scripted\nscripted.install(scripted.Scripted({seconds}))\n"


def written(pytester):
    return {path for path in pytester.path.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_each_option_that_a_session_alone_obeys_is_tried_here():
    assert {one.name for one in options.ALL if one.child is Child.NONE} == {one.partition("=")[0] for one in ONCE}


@pytest.mark.parametrize("in_ini", [False, True])
def test_a_child_writes_and_judges_nothing_of_the_sessions_own(pytester, monkeypatch, in_ini):
    monkeypatch.setenv(CONFIRMS, "1")
    pytester.makeini(f"[pytest]\naddopts = {' '.join(ONCE) if in_ini else ''}\n")
    pytester.makepyfile(test_decode=TEST)
    files = written(pytester)
    done = pytester.runpytest(*QUICK, "--perf-backends=torch", "-W", "ignore", *() if in_ini else ONCE)
    assert (done.ret, done.errlines) == (0, [])
    assert written(pytester) == files


def test_a_suspect_is_measured_again_although_the_session_has_options_of_its_own(suite):
    """Each of these ended the process that measures it again, or left the suspect out of it."""
    suite.makeconftest(TAKES.format(seconds=1e-4))
    measured = (*QUICK, "--perf-iters=5", "--perf-backends=torch", "-W", "ignore")
    suite.runpytest(*measured, "--benchmark-json=base.json").assert_outcomes(passed=2)
    suite.makeconftest(TAKES.format(seconds=1e-3))
    done = suite.runpytest(*measured, "--perf-gate=base.json", *here(["--perf-shard=2/2"]))
    done.stdout.fnmatch_lines(["*measured again: +900*"])
