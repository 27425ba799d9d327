"""`--perf-plant`: extra work behind each timed call of some tests."""

import json

import pytest

from pytest_flashinfer_perf.extensions.planting import planted_work
from pytest_flashinfer_perf.rows import run_file

QUICK = ("--import-mode=importlib", "-p", "no:cacheprovider", "--perf-iters=3", "--perf-device=cpu")
LINE = "--routine bmm_fp8 --backends torch --batch_size 1 --m 4 --n 16 --k 16"
OWN = """
import torch

def test_own(perf):
    perf.time(torch.neg, torch.ones(8), reference=-torch.ones(8))

def test_other(perf):
    perf.time(torch.neg, torch.ones(8))

def test_plain(benchmark):
    benchmark.pedantic(lambda: None, rounds=3)
"""


@pytest.fixture
def measured(pytester):
    """Rows by test id, of a line of a testlist and of tests of one's own, or of the suite's case."""
    pytester.makefile(".txt", lines=f"{LINE}\n")
    pytester.makepyfile(test_own=OWN)

    def measured(*arguments):
        done = pytester.runpytest(*arguments, *QUICK, "--benchmark-json=run.json")
        assert done.ret == 0
        return {row.fullname: row for row in run_file.read_all([pytester.path / "run.json"])[0].rows}

    measured.path = pytester.path
    return measured


@pytest.mark.parametrize("arguments", [("lines.txt", "test_own.py"), (f"--perf-case={LINE}",)], ids=["own", "suite"])
def test_timed_calls_are_followed_by_the_work_that_is_planted(measured, arguments):
    before = measured(*arguments)
    planted = {test: 0.02 for test in before if not test.endswith("test_other")}
    (measured.path / "plants.json").write_text(json.dumps(planted))
    after = measured(*arguments, "--perf-plant=plants.json")
    assert set(after) == set(before)
    seen = {test: row.parts.get("planted_us") for test, row in after.items()}
    assert [test for test, us in seen.items() if us is None] == [
        test for test in before if test.endswith(("test_other", "test_plain"))
    ]
    assert all(us == pytest.approx(20_000) for us in seen.values() if us is not None)
    assert {row.parts.get("planted_us") for row in before.values()} == {None}


@pytest.mark.more
def test_planted_work_takes_its_time(measured):
    (measured.path / "plants.json").write_text(json.dumps({"test_own.py::test_own": 0.02}))
    assert measured("test_own.py", "--perf-plant=plants.json")["test_own.py::test_own"].median >= 0.02


@pytest.mark.parametrize(("asked", "added"), [(100e-6, 100e-6), (2e-6, 2e-6), (30e-9, 1.4e-6)])
def test_a_spinning_kernel_adds_what_is_asked_and_at_least_its_launch(asked, added):
    spin = planted_work.Spin(launch=1.4e-6, per_cycle=0.5e-9)
    assert spin.lasting(asked).seconds == pytest.approx(added, abs=1e-9)
