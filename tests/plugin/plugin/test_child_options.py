"""What the processes that a session starts do with its options, from the command line or an ini file."""

import pytest
from decode_cases import QUICK, TEST

from pytest_flashinfer_perf.plugin import options
from pytest_flashinfer_perf.session.stash import COMPILES, CONFIRMS
from pytest_flashinfer_perf.settings.option import Child

COMPILING = "import pytest\n@pytest.hookimpl(tryfirst=True)\ndef pytest_runtestloop(session): return True"
ONCE = (
    *("--perf-gate=nothing.json", "--perf-gate-strict", "--perf-gate-allow=gpu", "--perf-save-baseline=base"),
    *("--perf-html=page.html", "--perf-csv=rows.csv", "--perf-prebuild", "--perf-resume"),
)
OF_OTHERS = ("--benchmark-json=run.json", "--benchmark-save=saved", "--benchmark-autosave", "--junitxml=junit.xml")

TAKES = "import scripted\nscripted.install(scripted.Scripted({seconds}))\n"


def written(pytester):
    return {path for path in pytester.path.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_each_option_that_a_session_alone_obeys_is_tried_here():
    assert {one.name for one in options.ALL if one.child is Child.NONE} == {one.partition("=")[0] for one in ONCE}


@pytest.mark.parametrize("in_ini", [False, True])
@pytest.mark.parametrize("variable", [COMPILES, CONFIRMS])
def test_a_child_writes_and_judges_nothing_of_the_sessions_own(pytester, monkeypatch, variable, in_ini):
    monkeypatch.setenv(variable, "1")
    asked = (*ONCE, *OF_OTHERS) if variable == COMPILES else ONCE
    pytester.makeini(f"[pytest]\naddopts = {' '.join(asked) if in_ini else ''}\n")
    pytester.makepyfile(conftest=COMPILING if variable == COMPILES else "", test_decode=TEST)
    files = written(pytester)
    done = pytester.runpytest(*QUICK, "--perf-backends=torch", "-W", "ignore", *() if in_ini else asked)
    assert (done.ret, done.errlines) == (0, [])
    assert written(pytester) == files


@pytest.mark.parametrize(("variable", "passed"), [(COMPILES, 1), (CONFIRMS, 2)])
def test_a_shard_is_compiled_alone_and_what_is_confirmed_is_no_shard(suite, monkeypatch, variable, passed):
    monkeypatch.setenv(variable, "1")
    done = suite.runpytest(*QUICK, "--perf-backends=torch", "--perf-shard=1/2", "-W", "ignore")
    done.assert_outcomes(passed=passed, deselected=2 - passed)


def test_a_suspect_is_measured_again_although_the_session_has_options_of_its_own(suite):
    """Each of these ended the process that measures it again, or left the suspect out of it."""
    suite.makeconftest(TAKES.format(seconds=1e-4))
    measured = (*QUICK, "--perf-iters=5", "--perf-backends=torch", "-W", "ignore")
    suite.runpytest(*measured, "--benchmark-json=base.json").assert_outcomes(passed=2)
    suite.makeconftest(TAKES.format(seconds=1e-3))
    done = suite.runpytest(*measured, "--perf-gate=base.json", "--perf-shard=2/2")
    done.stdout.fnmatch_lines(["*measured again: +900*"])
