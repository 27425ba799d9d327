"""The file of --benchmark-json is whole and of this run, with rows or without, or it is gone."""

import json

import pytest
from made import row, saved

from pytest_flashinfer_perf import cli

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
def test_a_run_without_rows_replaces_an_older_file_and_says_why(run, old, outcome, capsys):
    before = saved(old.with_name("base.json"), *json.loads(old.read_text())["benchmarks"])
    done = run(ENDINGS[outcome])
    assert done.ret == (outcome == "failed")
    done.stdout.fnmatch_lines(["*run.json: no case was measured, the file has the reasons and no rows"])
    written = json.loads(old.read_text())
    assert written["benchmarks"] == []
    [left] = written["flashinfer_perf"]["unmeasured"]
    assert (left["case"], left["outcome"]) == ("test_written_files.py::test_it", outcome)
    assert cli.main(["compare", "--base", str(before), "--head", str(old)]) == (1 if outcome == "failed" else 2)
    assert f"{outcome}: in the baseline, not in this run: " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("option", ["--perf-refcheck=only", "--benchmark-disable"])
def test_a_run_that_times_nothing_leaves_no_older_times(run, old, option, capsys):
    assert run("perf.time(torch.neg, torch.ones(8))", option).ret == 0
    assert json.loads(old.read_text())["benchmarks"] == []
    assert cli.main(["report", "--markdown", str(old)]) == 0
    assert "Nothing was measured" in capsys.readouterr().out


def test_a_look_at_what_would_be_run_leaves_the_older_file(run, old):
    before = old.read_text()
    run(ENDINGS["skipped"], "--collect-only")
    assert old.read_text() == before


@pytest.mark.parametrize("options", [("-k", "plain"), ("-k", "neither"), ("test_broken.py",), ("--perf-backends=x",)])
def test_a_session_that_runs_no_case_leaves_no_older_file(run, old, pytester, options):
    pytester.path.joinpath("test_broken.py").write_text("import nowhere_to_be_found\n")
    run(ENDINGS["skipped"], "--ignore=test_broken.py", *options)
    assert not old.exists()


def test_a_session_that_is_killed_leaves_no_older_file(pytester, old):
    pytester.makepyfile(test_written_files=PROGRAM.format("import os; os._exit(3)"))
    assert pytester.runpytest_subprocess(*QUICK, "--benchmark-json=run.json").ret == 3
    assert not old.exists()


def test_a_skip_beside_a_plain_benchmark_is_in_its_file(run, old, pytester):
    pytester.makepyfile(test_plain="def test_x(benchmark):\n    benchmark.pedantic(int, rounds=3)")
    assert "no case was measured" not in run(ENDINGS["skipped"]).stdout.str()
    assert [one["fullname"] for one in json.loads(old.read_text())["benchmarks"]] == ["test_plain.py::test_x"]
