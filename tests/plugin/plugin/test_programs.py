"""Programs whose calls of compat's functions become rows: `pytest --perf-record bench_mine.py`."""

import json

import pytest

MINE = """
import sys

import torch
from pytest_flashinfer_perf.compat import bench_gpu_time, do_bench

import shapes


def main():
    for n in shapes.SIZES:
        assert len(bench_gpu_time(torch.neg, 1, 7, input_args=(torch.randn(n),))) == 7
    print("took", do_bench(lambda: torch.neg(torch.ones(9)), 0, 1), sys.argv)


if __name__ == "__main__":
    main()
    sys.exit(0)
"""
ENDS = {
    "bench_ends": ("import sys; sys.exit('no such shape')", "no such shape"),
    "bench_silent": ("x = 1", "*bench_silent.py made no call of bench_gpu_time, do_bench or run_bench*"),
    "bench_raises": (
        "from pytest_flashinfer_perf.compat import do_bench\ndo_bench([].pop)",
        "IndexError: pop from empty list",
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
    assert seen[:2] == [("bench_mine.py::call[1-of-3]", 11, 7), ("bench_mine.py::call[2-of-3]", 11, 7)]
    assert seen[2][:2] == ("bench_mine.py::call[3-of-3]", 12)
    assert {row["extra_info"]["refcheck"] for row in rows} == {"not checked"}


def test_a_program_can_be_a_baseline(pytester):
    """A call that is gone is missing, and another one can be asked for alone. How busy the cores are is no matter."""
    pytester.makepyfile(bench_mine=MINE, shapes="SIZES = (64, 128)")
    pytester.path.joinpath("flashinfer-perf.toml").write_text('[thresholds]\n"*" = { slower = "900%" }\n')
    pytester.runpytest(*QUICK, "bench_mine.py", "--benchmark-json=run.json").assert_outcomes(passed=3)
    alone = pytester.runpytest_subprocess(*QUICK, "bench_mine.py::call[2-of-3]", "--perf-gate=run.json")
    assert alone.ret == 2
    alone.stdout.fnmatch_lines(["MISSING (2)", "*call?1?*", "*call?3?*", "*call?2?*"])


def test_work_that_is_planted_in_one_call_is_in_that_one(pytester):
    """As `flashinfer-perf prove` plants it, by the names of the rows before."""
    pytester.makepyfile(bench_mine=MINE, shapes="SIZES = (64, 128)")
    (pytester.path / "plants.json").write_text('{"bench_mine.py::call[2-of-3]": 0.002}')
    done = pytester.runpytest(*QUICK, "bench_mine.py", "--perf-plant=plants.json", "--benchmark-json=run.json")
    done.assert_outcomes(passed=3)
    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert [row["extra_info"]["planted_us"] for row in rows] == [None, 2000.0, None]


def test_a_call_that_is_timed_may_make_one(pytester):
    inner = "bench_gpu_time(lambda: bench_gpu_time(torch.neg, 1, 1, input_args=(torch.ones(8),)), 1, 1)"
    pytester.makepyfile(bench_nested=CALL + inner)
    done = pytester.runpytest(*QUICK, "bench_nested.py", "--perf-timeout=60")
    assert done.ret == 0


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


CALL = "import os, sys, time, threading, torch\nfrom pytest_flashinfer_perf.compat import bench_gpu_time\n"
ONE = "bench_gpu_time(torch.neg, 1, 3, input_args=(torch.ones(8),))\n"
OVERWRITES = "open(os.path.join(os.environ['FLASHINFER_PERF_PROGRAM'], 'calls'), 'wb').write(b'\\x80\\x05garbage')"
GOES_ON = """
for f in (torch.neg, lambda x: x / "a", torch.abs):
    try:
        bench_gpu_time(f, 1, 3, input_args=(torch.ones(8),))
    except TypeError:
        print("goes on")
"""
IN_A_CHILD = """
from multiprocessing import get_context
def one(n): bench_gpu_time(torch.neg, 1, 3, input_args=(torch.ones(n),))
if __name__ == "__main__":
    one(8)
    with get_context("fork").Pool(1) as pool:
        try: pool.map(one, [8])
        except Exception: print("goes on")
"""


def test_a_call_that_fails_is_a_test_that_fails_although_the_program_goes_on(pytester):
    """And the calls behind it keep their numbers."""
    pytester.makepyfile(bench_backends=CALL + GOES_ON)
    done = pytester.runpytest(*QUICK, "bench_backends.py")
    done.assert_outcomes(passed=2, failed=1)
    done.stdout.fnmatch_lines(["line 6: TypeError: unsupported operand*", "pytest --perf-record *bench_backends.py"])


def test_two_programs_have_nothing_of_each_other(pytester):
    sets = "import common\ntorch.set_default_dtype(torch.float64); os.environ['X'] = '1'; os.chdir('/')\n"
    is_new = "import common\nassert common.B and torch.get_default_dtype() == torch.float32 and 'X' not in os.environ\n"
    for folder, text in (("a", CALL + sets + ONE), ("b", CALL + is_new + ONE)):
        (pytester.path / folder).mkdir()
        (pytester.path / folder / "bench.py").write_text(text)
        (pytester.path / folder / "common.py").write_text(f"{folder.upper()} = 1\n")
    pytester.runpytest(*QUICK, "a/bench.py", "b/bench.py").assert_outcomes(passed=2)


@pytest.mark.parametrize(
    ("text", "outcomes", "said"),
    [
        (ONE + "os._exit(0)", {"passed": 1}, "*1 passed*"),
        (ONE + OVERWRITES, {"errors": 1}, "*bench_odd.py wrote into the file of its calls, which is not its own: *"),
        (ONE + "os.abort()", {"errors": 1}, "*bench_odd.py ended with SIGABRT:"),
        (f"threading.Thread(target=lambda: (time.sleep(0.3), {ONE.strip()})).start()\n{ONE}", {"passed": 2}, "*"),
        (IN_A_CHILD, {"passed": 1, "failed": 1}, "*--perf-record keeps calls of the program's own process*"),
        (ONE + "time.sleep(60)", {"errors": 1}, "*no call ended within 5 s (--perf-timeout)"),
    ],
    ids=["exits at once", "overwrites", "crashes", "thread", "child", "hangs"],
)
def test_however_a_program_ends_no_call_is_lost(pytester, text, outcomes, said):
    pytester.makepyfile(bench_odd=CALL + text)
    done = pytester.runpytest(*QUICK, "bench_odd.py", f"--perf-timeout={5 if 'sleep(60)' in text else 120}")
    done.assert_outcomes(**outcomes)
    done.stdout.fnmatch_lines([said])


def test_what_finds_no_program_and_what_keeps_old_rows_is_refused(pytester):
    pytester.makepyfile(bench_mine=MINE, shapes="SIZES = ()")
    folder = pytester.runpytest(*QUICK, ".")
    assert folder.ret == pytest.ExitCode.USAGE_ERROR
    folder.stderr.fnmatch_lines(["*--perf-record: no Python file is named*"])
    resumed = pytester.runpytest(*QUICK, "bench_mine.py", "--perf-resume")
    resumed.assert_outcomes(errors=1)
    resumed.stdout.fnmatch_lines(["*--perf-record runs a program anew: leave out --perf-resume*"])


def test_a_program_runs_in_one_process(pytester):
    pytester.makepyfile(bench_mine=MINE, shapes="SIZES = ()")
    done = pytester.runpytest_subprocess(*QUICK, "-n", "1", "bench_mine.py")
    assert done.ret != 0
    done.stdout.fnmatch_lines(["*--perf-record runs each program once, from this process: leave out -n*"])
