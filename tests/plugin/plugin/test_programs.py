"""Programs whose calls of compat's functions become rows: `pytest --perf-record bench_mine.py`."""

import json

import pytest

MINE = """
import gc, sys

import torch
from pytest_flashinfer_perf.compat import bench_gpu_time, do_bench

import shapes


def main():
    for n in shapes.SIZES:
        assert len(bench_gpu_time(torch.neg, 1, 7, input_args=(torch.randn(n),))) == 7
    print("took", do_bench(lambda: torch.neg(torch.ones(9)), 0, 1), sys.argv)
    assert gc.isenabled(), "which it is not while tests are collected"


if __name__ == "__main__":
    main()
    sys.exit(0)
"""
ENDS = {
    "bench_ends": ("import sys; sys.exit('no such shape')", "*bench_ends.py ended with no such shape"),
    "bench_silent": ("x = 1", "*bench_silent.py made no call of bench_gpu_time, do_bench or run_bench*"),
    "bench_raises": (
        "from pytest_flashinfer_perf.compat import do_bench\ndo_bench([].pop)",
        "E   IndexError: pop from empty list",
    ),
}
QUICK = ("--perf-record", "--perf-device=cpu", "-p", "no:cacheprovider", "-W", "ignore:pytest_flashinfer_perf.compat")


def test_each_call_of_a_program_is_a_row(pytester):
    pytester.makepyfile(bench_mine=MINE, shapes="SIZES = (64, 128)")
    done = pytester.runpytest(*QUICK, "-s", "bench_mine.py", "--benchmark-json=run.json")
    done.assert_outcomes(passed=3)
    assert str([str(pytester.path / "bench_mine.py")]) in done.stdout.str()
    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    seen = [(row["fullname"], row["params"]["line"], row["stats"]["rounds"]) for row in rows]
    assert seen[:2] == [("bench_mine.py::call[1]", 11, 7), ("bench_mine.py::call[2]", 11, 7)]
    assert seen[2][:2] == ("bench_mine.py::call[3]", 12)
    assert {row["extra_info"]["refcheck"] for row in rows} == {"not checked"}


def test_a_program_can_be_a_baseline(pytester):
    """A call that is gone is missing, and another one can be asked for alone."""
    pytester.makepyfile(bench_mine=MINE, shapes="SIZES = (64, 128)")
    pytester.runpytest(*QUICK, "bench_mine.py", "--benchmark-json=run.json").assert_outcomes(passed=3)
    alone = pytester.runpytest_subprocess(*QUICK, "bench_mine.py::call[2]", "--perf-gate=run.json")
    assert alone.ret == 2
    alone.stdout.fnmatch_lines(["MISSING (2)", "*call?1?*", "*call?3?*", "*call?2?*"])


def test_what_is_no_measurement_is_an_error(pytester):
    pytester.makepyfile(**{name: source for name, (source, _) in ENDS.items()})
    done = pytester.runpytest(*QUICK, *(f"{name}.py" for name in ENDS))
    done.assert_outcomes(errors=3)
    for _, said in ENDS.values():
        done.stdout.fnmatch_lines([said])
    assert done.ret == pytest.ExitCode.INTERRUPTED


@pytest.mark.parametrize("other", ["--perf-refcheck=only", "--perf-fuzz"])
def test_a_program_is_only_timed(pytester, other):
    pytester.makepyfile(bench_mine=MINE, shapes="SIZES = ()")
    done = pytester.runpytest(*QUICK, "bench_mine.py", other)
    done.assert_outcomes(errors=1)
    done.stdout.fnmatch_lines(["*--perf-record times calls, which have no shapes to search*"])


def test_a_program_runs_in_one_process(pytester):
    pytester.makepyfile(bench_mine=MINE, shapes="SIZES = ()")
    done = pytester.runpytest_subprocess(*QUICK, "-n", "1", "bench_mine.py")
    assert done.ret != 0
    done.stdout.fnmatch_lines(["*--perf-record runs each program once, in this process: leave out -n*"])
