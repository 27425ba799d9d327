"""How a call is timed: by options of the run, by a marker, or for one call; what the row says was asked for."""

import asyncio
import concurrent.futures
import functools
import subprocess
import sys

import pytest
import torch
from own_calls import drawn, seen

from pytest_flashinfer_perf.engine.refusals import CallError


def test_calls_that_are_asked_for_are_made_even_if_placements_do_not_fit(monkeypatch):
    from pytest_flashinfer_perf.engine import placements

    monkeypatch.setattr(placements, "fits", lambda *_: False)
    assert len(seen(torch.neg, drawn(8), measuring={"iters": 20}).samples) == 20


PER_CALL = """
import pytest, torch
from pytest_flashinfer_perf import Measuring

X = torch.ones(64)

def kernel(x, iters=None, cold_l2=None):
    assert (iters, cold_l2) in ((None, None), (3, "mine"))
    return -x

def test_run(perf): perf.time(kernel, X)
def test_call(perf): perf.time(kernel, X, iters=3, cold_l2="mine", measuring={"iters": 7, "cold_l2": "flush"})
def test_whole(perf): perf.time(kernel, X, measuring=Measuring(iters=6, warmup=3))

@pytest.mark.perf_measuring(iters=8, warmup=3)
class TestMarked:
    def test_class(self, perf): perf.time(kernel, X)
    @pytest.mark.perf_measuring(iters=9, max_time=0.25)
    @pytest.mark.benchmark(max_time=0.5)
    def test_nearer(self, perf): perf.time(kernel, X)
    def test_nearest(self, perf): perf.time(kernel, X, measuring={"iters": 5, "peaks": "datasheet"})

@pytest.mark.perf_measuring(iters=4, warmup=1)
@pytest.mark.perf_cases("mm_bf16", "--m 4 --n 16 --k 32")
def test_case(perf, case): perf(case)
"""


def test_a_call_or_a_test_is_timed_as_it_says(session):
    run = ("--perf-device=cpu", "--perf-iters=2", "--perf-warmup=1", "--perf-cold-l2=none", "--perf-backends=torch")
    done = session(*run, quick=False, test_own=PER_CALL)
    infos = {name: (row["stats"]["rounds"], row["extra_info"]) for name, row in done.rows.items()}
    assert {name: (rounds, info["warmups"], info["cold_l2"]) for name, (rounds, info) in infos.items()} == {
        "test_run": (2, 1, "none"),
        "test_call": (7, 1, "flush"),
        "test_whole": (6, 3, "rotate"),
        "test_class": (8, 3, "none"),
        "test_nearer": (9, 3, "none"),
        "test_nearest": (5, 3, "none"),
        "test_case[m4-n16-k32-torch]": (4, 1, "none"),
    }
    assert session(*run, "--benchmark-disable").outcomes == {"passed": 7}


THREADS = """
import pytest, torch

SEEN = []

def call(x):
    SEEN.append(torch.get_num_threads())
    return -x

@pytest.mark.parametrize("how", [{}, {"cpu_threads": 3}], ids=["run", "call"])
def test_threads(perf, how):
    torch.set_num_threads(2)
    SEEN.clear()
    perf.time(call, torch.ones(8), reference=call, measuring=how)
    print(f"threads {set(SEEN)}, then {torch.get_num_threads()}")
"""


@pytest.mark.parametrize(("option", "run"), [((), 1), (("--perf-cpu-threads=2",), 2)])
def test_a_cpu_measures_with_one_thread_unless_another_number_is_asked_for(session, option, run):
    done = session(*option, "-rP", process=True, test_own=THREADS)
    assert [row["extra_info"]["cpu_threads"] for row in done.rows.values()] == [run, 3]
    assert f"threads {{{run}}}, then 2" in done.out
    assert "threads {3}, then 2" in done.out
    done.says("own kernels on *: wall, 3 threads, cold L2 by*")


WRONG_HOW = """
import pytest, torch
from pytest_flashinfer_perf import Measuring

X = torch.ones(4)

def test_value(perf): perf.time(torch.neg, X, measuring={"iters": 0})
def test_name(perf): perf.time(torch.neg, X, measuring={"iter": 3})
@pytest.mark.perf_measuring(cold="none")
def test_marked(perf): perf.time(torch.neg, X)
@pytest.mark.perf_measuring(Measuring())
def test_marked_whole(perf): perf.time(torch.neg, X)
"""
SAID = (
    "iters must be a whole number of at least 1, got 0",
    "measuring: unknown name 'iter', did you mean iters? known are instrument, cuda_graph, cold_l2, iters,",
    "measuring: unknown name 'cold', did you mean cold_l2? known are ",
    "perf_measuring takes names and values, as in iters=20, got Measuring(",
)


def test_what_no_call_can_be_told_fails_its_test_in_a_sentence(session):
    done = session(test_own=WRONG_HOW)
    assert done.outcomes == {"failed": 4}
    assert "dataclasses.py" not in done.out
    assert [sentence for sentence in SAID if sentence not in done.out] == []


SWALLOWING = """
import contextlib, pytest, torch

X = torch.ones(4)

def broken(x): raise LookupError("of my kernel")

def test_wrong(perf):
    with pytest.raises(BaseException): perf.time(torch.neg, X, reference=lambda: X)
def test_raised(perf):
    with pytest.raises(LookupError): perf.time(broken, X)
def test_asked(perf):
    with contextlib.suppress(ValueError): perf.time(torch.neg, X, flops=-1)
@pytest.mark.perf_cases("mm_bf16", "--m 4 --n 16 --k 32 --autotune")
def test_skip(perf, case):
    with contextlib.suppress(BaseException): perf(case)
def test_skipped_then(perf):
    with contextlib.suppress(BaseException): perf.time(broken, X)
    pytest.skip("not here")
def test_twice(perf):
    perf.time(torch.neg, X)
    with pytest.raises(RuntimeError): perf.time(torch.neg, X)
"""


def test_a_failure_that_a_test_swallows_is_its_failure_and_unmeasured(session):
    done = session("--perf-backends=torch", test_own=SWALLOWING)
    assert done.outcomes == {"failed": 4, "skipped": 1, "passed": 1}
    said = "nothing was measured, and the test went on after the failure of perf, which must end it: "
    for why in ("wrong answer: output 0: 4 elements differ", "of my kernel", "flops must be", "torch has "):
        assert said + why in done.out
    assert list(done.rows) == ["test_twice"]
    left = {one["test"].partition("::")[2].partition("[")[0] for one in done.document["flashinfer_perf"]["unmeasured"]}
    assert left == {"test_wrong", "test_raised", "test_asked", "test_skip", "test_skipped_then"}


async def later(x):
    return -x


async def each_later(x):
    yield -x


LAZY = {
    "coroutine": later,
    "generator": lambda x: (-x for _ in "a"),
    "async_generator": each_later,
    "map": lambda x: map(torch.neg, [x]),
    "list_iterator": lambda x: {"answers": [iter([x])]},
    "Future": lambda _x: concurrent.futures.Future(),
    "function": lambda x: lambda: -x,
    "partial": lambda x: functools.partial(torch.neg, x),
    "tensor without data": lambda x: x.to("meta"),
}


@pytest.mark.parametrize("kind", LAZY)
def test_a_call_that_puts_its_work_off_is_refused(kind):
    x, calls = drawn(8), []

    def stops(x):
        calls.append(1)
        return -x if len(calls) < 3 else LAZY[kind](x)

    for call in (LAZY[kind], stops):
        for more in ({}, {"reference": lambda: -x}, {"out": torch.empty(8)}):
            calls.clear()
            with pytest.raises(CallError, match=f"^the call returned a {kind}, and computed nothing yet: time what"):
                seen(lambda x, call=call, **_out: call(x), x, **more)


def test_what_is_run_is_timed():
    x = drawn(8)
    assert seen(lambda x: asyncio.run(later(x)), x, reference=lambda: -x).samples
    assert seen(lambda x: list(LAZY["generator"](x)), x, reference=lambda: -x).samples


SCRIPT = """
import sys
import torch
from pytest_flashinfer_perf import measure

def loaded(*names):
    print([name for name in names if name in sys.modules])

x = torch.ones(8)
seen = measure(torch.neg, (x,), reference=-x, bytes=2 * x.nbytes, measuring={"iters": 2})
assert (len(seen.samples), seen.checks[0].rule) == (2, "")
loaded("pytest_flashinfer_perf.routines", "pytest_flashinfer_perf.extensions", "pytest_benchmark")
from pytest_flashinfer_perf.engine import describe, one_case
loaded("pytest", "_pytest", *(f"pytest_flashinfer_perf.{room}" for room in ("session", "plugin")))
"""


def test_a_script_that_measures_loads_neither_pytest_nor_what_only_a_session_needs():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n[]\n"
