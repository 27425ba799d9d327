"""Functions with the signatures of other projects: what they take, what they return, and the row of a test."""

import ast
import importlib.util
import inspect
import statistics
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted

from pytest_flashinfer_perf.engine.cupti import Trace
from pytest_flashinfer_perf.engine.instruments import INSTRUMENTS, InstrumentError
from pytest_flashinfer_perf.engine.placements import PlacedSamples
from pytest_flashinfer_perf.engine.timing import Observations, Timing
from pytest_flashinfer_perf.extensions.compat import bench_gpu_time, do_bench
from pytest_flashinfer_perf.extensions.compat import functions as compat
from pytest_flashinfer_perf.extensions.compat.functions import CompatError

# triton 3.9's, which is not installed here.
DO_BENCH = "def do_bench(fn, warmup=25, rep=100, grad_to_none=None, quantiles=None, return_mode='mean'): ..."
BY_CLOCK = "measured by the host's clock, there is no GPU here"
ON_CPU = pytest.mark.filterwarnings("ignore:pytest_flashinfer_perf.extensions.compat")


def of_flashinfer():
    """Its source, which is read without seconds of imports."""
    [folder] = importlib.util.find_spec("flashinfer").submodule_search_locations
    return (Path(folder) / "testing" / "utils.py").read_text()


def parameters(source, name):
    """Names with defaults, as they are written."""
    [made] = [one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and one.name == name]
    defaults = [None] * (len(made.args.args) - len(made.args.defaults)) + made.args.defaults
    return [(one.arg, default and ast.unparse(default)) for one, default in zip(made.args.args, defaults, strict=True)]


def test_the_parameters_are_those_of_the_other_project():
    for name, source in (("bench_gpu_time", of_flashinfer()), ("do_bench", DO_BENCH)):
        assert parameters(inspect.getsource(compat), name) == parameters(source, name)


class Asked:
    """Stands for an instrument of a GPU: keeps how calls were to be measured, and answers with these seconds."""

    def __init__(self, *samples, busy=()):
        trace = Trace(("a", "b"), (1, 1), busy, 2, sum(busy), max(samples)) if busy else None
        placed = (PlacedSamples(samples, (sum(busy),) * len(samples) if busy else ()),)
        seen = Observations(trace)
        self.timing = Timing(samples, "cupti", "rotate", 1, cuda_graph=False, observations=seen, placements=placed)

    def __call__(self, call, measuring):
        self.measuring, self.call = measuring, call
        device = SimpleNamespace(is_gpu=True)
        return SimpleNamespace(samples=self.timing.samples, timing=self.timing, device=device)


SECONDS = st.lists(st.floats(1e-7, 10), min_size=1, max_size=30)
SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=4)


@given(SECONDS, SHARES)
def test_summaries_are_those_of_numpy_in_milliseconds(seconds, shares):
    times = [one * 1e3 for one in seconds]
    expected = np.quantile(times, shares)
    with compat.timed_by(Asked(*seconds)):
        found = do_bench(int, quantiles=shares)
        assert isinstance(found, list) == (len(shares) > 1)
        assert np.allclose(found, expected, rtol=1e-12)
        assert bench_gpu_time(int, dry_run_iters=1) == do_bench(int, return_mode="all") == times
        assert do_bench(int) == statistics.mean(times)
        for mode in ("min", "max", "median"):
            assert do_bench(int, return_mode=mode) == getattr(np, mode)(times)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({}, {"max_time": 0.1, "cold_l2": "rotate", "cuda_graph": "off", "iters": None}),
        ({"repeat_iters": 30, "dry_run_iters": 5}, {"iters": 30, "warmup": 5}),
        ({"cold_l2_cache": False, "repeat_time_ms": 500}, {"cold_l2": "none", "max_time": 0.5}),
        ({"l2_flush": False}, {"cold_l2": "none"}),
        ({"num_iters": 30, "dry_run_iters": 5, "enable_cupti": True}, {"iters": 30, "warmup": 5, "cold_l2": "rotate"}),
        ({"rotate_buffers": False}, {"cold_l2": "none"}),
    ],
    ids=str,
)
def test_arguments_say_how_calls_are_timed(given, asked):
    with compat.timed_by(Asked(1.0)), compat.timed_by(seen := Asked(1.0)):
        bench_gpu_time(int, **given)
    assert asked.items() <= seen.measuring.items()


def test_a_program_of_flashinfers_guide_gets_the_median_and_the_deviation():
    with compat.timed_by(seen := Asked(1e-3, 2e-3, 4e-3)):
        median, deviation = bench_gpu_time(torch.neg, args=(2,), enable_cupti=True, num_iters=3, dry_run_iters=5)
    assert (median, deviation) == (2.0, pytest.approx(np.std([1.0, 2.0, 4.0])))
    assert seen.call.args == (2,)


def test_a_call_with_arguments_on_the_host_alone_is_one_of_the_gpu(monkeypatch):
    """As that of a plan: what is among its arguments would make it one of the CPU."""
    monkeypatch.setattr(compat, "_device", lambda: "cuda:0")
    with compat.timed_by(seen := Asked(1.0)):
        bench_gpu_time(torch.neg, 1, 3, input_args=(torch.ones(2),))
    assert (seen.call.args, seen.call().tolist()) == ((), [-1, -1])


def test_a_warning_says_that_most_of_a_time_is_launches():
    """As of two short kernels that are launched one by one: Triton's own function hides that behind its flush."""
    said = "a kernel runs for 5.000 us of 40.00 us, .* use_cuda_graph=True"
    with compat.timed_by(Asked(40e-6, busy=(2e-6, 3e-6))), pytest.warns(UserWarning, match=said) as seen:
        assert do_bench(int) == pytest.approx(0.04)
    assert [Path(one.filename).name for one in seen] == [Path(__file__).name]
    with compat.timed_by(Asked(6e-6, busy=(2e-6, 3e-6))), warnings.catch_warnings(action="error"):
        do_bench(int)


@pytest.mark.parametrize(("milliseconds", "calls"), [(0, 1), (40, 20)])
def test_a_time_to_warm_up_is_the_calls_that_fit(milliseconds, calls, monkeypatch):
    """Five calls are tried, and one before that may compile."""
    now = [0.0]
    monkeypatch.setattr(compat.time, "perf_counter", lambda: now[0])
    with compat.timed_by(seen := Asked(1.0)):
        do_bench(lambda: now.__setitem__(0, now[0] + 0.002), warmup=milliseconds)
    assert seen.measuring["warmup"] == calls


@pytest.mark.parametrize(
    ("function", "given", "why"),
    [
        (bench_gpu_time, {"l2_flush_size_mb": 256}, "this GPU's L2"),
        (bench_gpu_time, {"l2_flush_device": "cuda"}, "device"),
        (bench_gpu_time, {"sleep_after_run": True}, "throttled"),
        (bench_gpu_time, {"num_iters_within_graph": 20}, "by itself"),
        (bench_gpu_time, {"aggregate_op": min}, "perf_ranks"),
        (do_bench, {"return_mode": "average"}, "return_mode is one of min, .*, got 'average'"),
    ],
)
def test_what_means_nothing_here_is_refused_with_the_reason(function, given, why):
    before = f"{next(iter(given))} means nothing here, leave it out: .*" if function is bench_gpu_time else "^"
    with compat.timed_by(Asked(1.0)), pytest.raises(CompatError, match=before + why):
        function(int, **given)


@pytest.mark.parametrize("function", [bench_gpu_time, do_bench])
def test_one_of_several_processes_is_told_what_times_them_together(monkeypatch, function):
    """Each would make as many calls as fit into its own time, and a collective of fewer ranks has no end."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(CompatError, match="perf_ranks"):
        function(int)


def test_on_a_cpu_a_call_is_timed_by_the_hosts_clock_and_that_is_said_at_its_line():
    x, seen = torch.ones(64), []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        times = bench_gpu_time(lambda x, by: seen.append(x * by), 2, 7, input_args=(x,), input_kwargs={"by": 2})
        do_bench(x.neg, warmup=1, rep=1)
    assert [(str(one.message).partition(": ")[2], one.filename) for one in said] == [(BY_CLOCK, __file__)] * 2
    assert times == pytest.approx([1.0, 1.001, 0.999] * 2 + [1.0])
    assert len(seen) >= 9
    assert all(torch.equal(one, 2 * x) for one in seen)


class Refuses(Scripted):
    def sample(self, *_):
        raise InstrumentError("the call launched nothing on the GPU")


def test_what_the_best_instrument_cannot_time_is_timed_by_events_and_that_is_said(monkeypatch):
    """As the original functions do: a benchmark that sweeps over shapes goes on."""
    for name, planted in (("wall", Refuses()), ("events", Scripted())):
        monkeypatch.setitem(INSTRUMENTS, name, planted)
    with pytest.warns(UserWarning, match="measured with events, not cupti: the call launched nothing"):
        assert len(bench_gpu_time(torch.ones(4).neg, 1, 7)) == 7


@ON_CPU
def test_gradients_are_forgotten_before_each_call():
    x, kept = torch.ones(4, requires_grad=True), []

    def backward():
        (3 * x).sum().backward()
        kept.append(x.grad.clone())

    do_bench(backward, warmup=1, rep=1, grad_to_none=[x])
    assert len(kept) > 5
    assert all(torch.equal(one, torch.full((4,), 3.0)) for one in kept)


TESTS = """
import pytest, torch
from pytest_flashinfer_perf.extensions.compat import bench_gpu_time, do_bench

def in_place(x): x.mul_(1.5)

def test_row(perf): bench_gpu_time(in_place, 1, 7, input_args=(torch.ones(64),), cold_l2_cache=False)
def test_two(perf): [bench_gpu_time(torch.neg, 1, 3, input_args=(torch.ones(64),)) for _ in range(2)]
def test_none(): assert len(bench_gpu_time(torch.neg, 1, 3, input_args=(torch.ones(64),))) == 3
"""


@ON_CPU
def test_in_a_test_with_perf_the_call_is_its_row_unless_answers_alone_are_asked_for(session):
    silent = ("-W", "ignore:pytest_flashinfer_perf.extensions.compat")
    done = session("--perf-device=cpu", *silent, quick=False, test_own=TESTS)
    assert done.outcomes == {"passed": 2, "failed": 1}
    done.says("*perf makes one row per test*")
    row = done["test_row"]
    info = row["extra_info"]
    assert (info["case"], info["refcheck"], info["cold_l2"]) == ("test_own.py::test_row", "not checked", "none")
    assert row["stats"]["rounds"] == 7
    done = session("--perf-refcheck=only", "-k", "row", "-rs")
    assert done.outcomes == {"skipped": 1, "deselected": 2}
    done.says("*--perf-refcheck=only: this call has no reference*")
