"""A test that is run again: its last attempt counts, in the JSON, the tables, the CSV and the gate."""

import functools

import pytest
from sessions import AGAIN

PROGRAM = """
import pytest, torch
from pytest_flashinfer_perf.session import benchmark_rows

ATTEMPTS = {}

@pytest.fixture
def attempt(request):
    attempt = ATTEMPTS[request.node.name] = ATTEMPTS.get(request.node.name, 0) + 1
    yield attempt
    if request.node.name == "test_teardown":
        assert attempt == 2

@pytest.fixture
def timed(perf, benchmark, attempt):
    def timed():
        benchmark.extra_info["attempt"] = attempt
        perf.time(torch.neg, torch.ones(8))
    return timed

def test_passes_then(timed, perf, benchmark, attempt):
    timed()
    assert attempt == 2

def test_measures_and_fails_twice(timed, perf, benchmark):
    timed()
    assert False

def test_fails_before_it_measures(timed, perf, benchmark, attempt):
    assert attempt == 1
    timed()
    assert False

def test_teardown(timed, perf, benchmark):
    timed()

def test_plain(timed, perf, benchmark):
    timed()
"""
EXPECTED = {"test_passes_then": 2, "test_measures_and_fails_twice": 2, "test_teardown": 2, "test_plain": 1}


@pytest.fixture
def again(session):
    return functools.partial(session, "--benchmark-quiet", "--perf-iters=5", conftest=AGAIN, test_again=PROGRAM)


def test_the_last_attempts_row_counts(again):
    done = again()
    assert done.code == pytest.ExitCode.TESTS_FAILED
    measured = [(row["name"], row["extra_info"]["attempt"]) for row in done.document["benchmarks"]]
    assert sorted(measured) == sorted(EXPECTED.items())
    unmeasured = done.document["flashinfer_perf"]["unmeasured"]
    assert [(one["test"].partition("::")[2], one["outcome"]) for one in unmeasured] == [
        ("test_measures_and_fails_twice", "failed"),
        ("test_fails_before_it_measures", "failed"),
    ]
    shown = [line for line in done.out.splitlines() if line.startswith("test_again.py::")]
    assert shown == [f"test_again.py::{name}" for name in EXPECTED]


SOUND = ("-k", "passes_then or teardown or plain")


def test_the_last_attempt_is_judged(again, pytester):
    pytester.makefile(".toml", **{"flashinfer-perf": '[thresholds]\n"*" = { slower = "50%" }\n'})
    again(*SOUND)
    (pytester.path / "run.json").rename(pytester.path / "base.json")
    done = again("--perf-gate=base.json", "--perf-gate-allow=invalid", *SOUND)
    assert "INVALID" not in done.out
    assert "fail" not in done.out.partition("= flashinfer-perf gate =")[2]
