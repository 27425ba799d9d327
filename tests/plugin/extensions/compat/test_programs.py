"""Programs whose calls of compat's functions become rows: `pytest --perf-record bench_mine.py`."""

import pytest

CALL = "import os, sys, threading, torch\n"
CALL += "from pytest_flashinfer_perf.extensions.compat import bench_gpu_time, do_bench\n"
ONE = "bench_gpu_time(torch.neg, 1, 3, input_args=(torch.ones(8),))\n"
RECORD = ("--perf-record", "--perf-device=cpu", "-p", "no:cacheprovider", "-W", "ignore")
# A call of a module beside it, one within another, one that fails, one in a thread, one in a child; it ends at once.
MINE = (
    CALL
    + """
import shapes


def nested():
    bench_gpu_time(torch.neg, 1, 1, input_args=(torch.ones(8),))


if __name__ == "__main__":
    for n in shapes.SIZES:
        assert len(bench_gpu_time(torch.neg, 1, 7, input_args=(torch.randn(n),))) == 7
    bench_gpu_time(nested, 1, 1)
    try:
        bench_gpu_time(lambda: torch.ones(8) / "a", 1, 3)
    except TypeError:
        print("goes on")
    thread = threading.Thread(target=lambda: do_bench(lambda: torch.neg(torch.ones(9)), 0, 1))
    thread.start()
    thread.join()
    if not os.fork():
        try:
            bench_gpu_time(torch.neg, 1, 3, input_args=(torch.ones(8),))
        finally:
            os._exit(0)
    os.wait()
    print("took", do_bench(lambda: torch.neg(torch.ones(9)), 0, 1), sys.argv, flush=True)
    os._exit(0)
"""
)


@pytest.fixture
def record(session):
    """A session with programs; its rows by what follows the name of the program."""
    return lambda *options, **files: session(*RECORD, *options, quick=False, **files)


def numbered(done, of):
    calls = {int(name.partition("[")[2].partition("-of-")[0]): row for name, row in done.rows.items()}
    assert all(name.endswith(f"-of-{of}]") for name in done.rows)
    return calls


def test_each_call_of_a_program_is_a_row_and_one_that_fails_a_test_that_fails(record):
    """Calls behind a failure keep their numbers; those of a child of the program are refused."""
    done = record("-s", "bench_mine.py", bench_mine=MINE, shapes="SIZES = (64, 128)")
    calls = numbered(done, of=done.outcomes["passed"] + done.outcomes["failed"])
    assert done.outcomes["failed"] == 2
    done.says("goes on", "took*bench_mine.py*")
    done.says("line 16: TypeError: unsupported operand*", "pytest --perf-record *bench_mine.py")
    assert "--perf-record keeps calls of the program's own process" in done.out
    assert [(calls[n]["params"]["line"], calls[n]["stats"]["rounds"]) for n in (1, 2)] == [(13, 7), (13, 7)]
    assert {row["extra_info"]["refcheck"] for row in calls.values()} == {"not checked"}


TWO = CALL + ONE + ONE


def test_a_program_can_be_a_baseline(record, pytester):
    """A call that is gone is missing, and another one can be asked for alone."""
    done = record("bench_two.py", bench_two=TWO)
    assert done.outcomes == {"passed": 2}
    (pytester.path / "run.json").rename(pytester.path / "base.json")
    alone = record("bench_two.py::call[2-of-2]", "--perf-gate=base.json")
    assert alone.code == 2
    alone.says("MISSING (1)", "*call?1?*")
    assert list(numbered(alone, of=2)) == [2]


OVERWRITES = "import os\nopen(os.environ['FLASHINFER_PERF_PROGRAM'] + '/calls', 'wb').write(b'\\x80\\x05garbage')"
ENDS = {
    "bench_ends": ("import sys; sys.exit('no such shape')", ["no such shape"]),
    "bench_silent": ("x = 1", ["*bench_silent.py made no call of bench_gpu_time or do_bench*"]),
    "bench_raises": ("[].pop()", ["IndexError: pop from empty list"]),
    "bench_aborts": ("import os; os.abort()", ["*bench_aborts.py ended with SIGABRT:"]),
    "bench_writes": (OVERWRITES, ["*bench_writes.py wrote into the file of its calls, which is not its own: *"]),
}


def test_what_is_no_measurement_is_an_error(record):
    done = record(*(f"{name}.py" for name in ENDS), **{name: text for name, (text, _) in ENDS.items()})
    assert (done.code, done.outcomes) == (pytest.ExitCode.INTERRUPTED, {"errors": len(ENDS)})
    for _, said in ENDS.values():
        done.says(*said)


@pytest.mark.more
def test_a_program_that_hangs_is_ended(record):
    done = record("bench_odd.py", "--perf-timeout=5", bench_odd=CALL + ONE + "import time; time.sleep(60)")
    assert done.outcomes == {"errors": 1}
    done.says("*no call ended within 5 s (--perf-timeout)")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("bench.py", "--perf-refcheck=only"), "--perf-record times calls, which have no reference: leave out *"),
        (("bench.py", "-n1"), "--perf-record runs each program once, from this process: leave out -n"),
        ((".",), "--perf-record: no Python file is named*"),
    ],
)
def test_a_program_is_only_timed_once_here_and_by_its_name(record, options, said):
    done = record(*options, bench="raise AssertionError('it ran')")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains(f"ERROR: {said}")


def test_two_programs_have_nothing_of_each_other(record, pytester):
    sets = "import common\ntorch.set_default_dtype(torch.float64); os.environ['X'] = '1'; os.chdir('/')\n"
    is_new = "import common\nassert common.B and torch.get_default_dtype() == torch.float32 and 'X' not in os.environ\n"
    for folder, text in (("a", CALL + sets + ONE), ("b", CALL + is_new + ONE)):
        (pytester.path / folder).mkdir()
        (pytester.path / folder / "bench.py").write_text(text)
        (pytester.path / folder / "common.py").write_text(f"{folder.upper()} = 1\n")
    assert record("a/bench.py", "b/bench.py").outcomes == {"passed": 2}
