"""The file of --benchmark-json is whole and of this run, with rows or without, or it is gone."""

import json

import pytest
from made import row, saved

QUICK = ("-p", "no:cacheprovider", "--benchmark-quiet", "--perf-iters=3", "--perf-device=cpu", "-W", "error")
PROGRAM = """
import pytest, torch

def test_it(perf):
    {}

def test_plain():
    pass
"""
ENDINGS = {
    "skipped": "pytest.skip('no such kernel')",
    "failed": "perf.time(torch.neg, torch.ones(8), reference=torch.ones(8))",
    "xfailed": "pytest.xfail('no such kernel')",
}


@pytest.fixture
def old(pytester):
    """A file of an earlier run, in which the case was measured."""
    measured = {**row("test_written_files.py::test_it"), "fullname": "test_written_files.py::test_it"}
    return saved(pytester.path / "run.json", measured)


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")

    def run(body, *options):
        pytester.makepyfile(test_written_files=PROGRAM.format(body))
        return pytester.runpytest(*QUICK, "--benchmark-json=run.json", *options)

    return run


@pytest.mark.parametrize("outcome", ENDINGS)
def test_a_run_without_rows_replaces_an_older_file_and_says_why(run, old, outcome):
    done = run(ENDINGS[outcome])
    assert done.ret == (outcome == "failed")
    done.stdout.fnmatch_lines(["*run.json: no case was measured, the file has the reasons and no rows"])
    written = json.loads(old.read_text())
    assert written["benchmarks"] == []
    [left] = written["flashinfer_perf"]["unmeasured"]
    assert (left["case"], left["outcome"]) == ("test_written_files.py::test_it", outcome)


@pytest.mark.parametrize("option", ["--perf-refcheck=only", "--benchmark-disable"])
def test_a_run_that_times_nothing_leaves_no_older_times(run, old, option):
    assert run("perf.time(torch.neg, torch.ones(8))", option).ret == 0
    assert json.loads(old.read_text())["benchmarks"] == []


@pytest.mark.parametrize("option", ["--collect-only", "--fixtures", "--help"])
def test_a_look_at_what_would_be_run_leaves_the_older_file(run, old, option):
    before = old.read_text()
    run(ENDINGS["skipped"], option)
    assert old.read_text() == before


def test_a_link_to_a_file_stays_one(run, old):
    kept = old.with_name("kept.json")
    old.rename(kept)
    old.symlink_to(kept)
    run(ENDINGS["skipped"], "-k", "plain")
    assert (old.is_symlink(), kept.exists()) == (True, False)
    run(ENDINGS["skipped"])
    assert old.is_symlink()
    assert json.loads(kept.read_text())["benchmarks"] == []


@pytest.mark.parametrize(
    ("options", "ours"),
    [(("-k", "plain"), ()), (("-k", "neither"), QUICK), (("test_broken.py",), ()), (("--perf-backends=x",), QUICK)],
)
def test_a_session_that_runs_no_case_leaves_no_older_file(old, pytester, options, ours):
    pytester.makepyfile(test_written_files=PROGRAM.format(ENDINGS["skipped"]), test_broken="import nowhere")
    pytester.runpytest(*ours, "--benchmark-json=run.json", "--ignore=test_broken.py", *options, "-W", "ignore")
    assert not old.exists()


@pytest.mark.parametrize("name", ["test_written_files.py", "pytest.ini", "data.csv"])
def test_a_file_of_another_kind_is_not_removed(pytester, name):
    """Where a case is found, those that the session reads are refused besides."""
    pytester.makepyfile(test_written_files="def test_plain(): pass")
    pytester.makefile(".csv", data="a,b")
    pytester.makeini("[pytest]")
    pytester.path.joinpath("tox.ini").rename(pytester.path / "pytest.ini")
    before = (pytester.path / name).read_text()
    pytester.runpytest(f"--benchmark-json={name}", "-W", "ignore").assert_outcomes(passed=1)
    assert (pytester.path / name).read_text() == before


def test_a_file_is_whole_where_no_option_is_ours(pytester, old):
    """The hooks join the session when the case is found."""
    pytester.makepyfile(test_written_files=PROGRAM.format("perf.time(torch.neg, torch.ones(8))"))
    conftest = """
        import os
        replace = os.replace

        def refused(*_):
            raise OSError(28, "No space left on device")

        def pytest_runtest_logfinish():
            os.replace = refused

        def pytest_unconfigure():
            os.replace = replace
        """
    pytester.makeconftest(conftest)
    done = pytester.runpytest("--benchmark-json=run.json", "-p", "no:cacheprovider", "-W", "ignore")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines(["--benchmark-json: not written: *No space left on device: '*run.json'"])
    assert not old.exists()


def test_a_session_that_is_killed_leaves_no_older_file(pytester, old):
    pytester.makepyfile(test_written_files=PROGRAM.format("import os; os._exit(3)"))
    assert pytester.runpytest_subprocess(*QUICK, "--benchmark-json=run.json").ret == 3
    assert not old.exists()


def test_a_skip_beside_a_plain_benchmark_is_in_its_file(run, old, pytester):
    pytester.makepyfile(test_plain="def test_x(benchmark):\n    benchmark.pedantic(int, rounds=3)")
    assert "no case was measured" not in run(ENDINGS["skipped"]).stdout.str()
    assert [one["fullname"] for one in json.loads(old.read_text())["benchmarks"]] == ["test_plain.py::test_x"]
