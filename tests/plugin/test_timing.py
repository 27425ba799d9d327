import contextlib
import itertools
import json
import math
import statistics
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf import Measuring, measure
from pytest_flashinfer_perf.checking.check import WrongAnswerError
from pytest_flashinfer_perf.config.settings import Checking
from pytest_flashinfer_perf.machine import nvrtc, telemetry
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.measuring.walk import walk
from pytest_flashinfer_perf.report import markdown, runs
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import read
from pytest_flashinfer_perf.timing import clocks, instruments, run, stopping
from pytest_flashinfer_perf.timing.instruments import InstrumentError, Wall, Work
from pytest_flashinfer_perf.timing.target import Target
from pytest_flashinfer_perf.timing.trace import Activity, summarise


class Simulated:
    """Calls that take their time by a wall clock of their own; each placement shifts it by a share."""

    def __init__(self, durations, shifts=(0.0,), instrument="cupti"):
        self.now, self.instrument, self.placed, self.warmups = 0.0, instrument, [], 0
        self._turn, self._shift = itertools.cycle(durations), itertools.cycle(shifts)

    def _call(self, shift=0.0):
        took = next(self._turn) * (1 + shift)
        self.now += took
        return took

    def _place(self, calls, warmup):
        shift = next(self._shift)
        self.warmups += warmup
        for _ in range(warmup):
            self._call(shift)
        self.placed.append([self._call(shift) for _ in range(calls)])

    def run(self, **how):
        asked = Measuring(**how)
        each = self._call() if stopping.needs_trial(asked) else 1e-9
        budget = stopping.Budget(stopping.WALL_FACTOR * asked.max_time, lambda: self.now)
        sampling = stopping.Sampling(asked, self.instrument, each, budget)
        while calls := sampling.elsewhere(self.placed):
            self._place(calls, sampling.warmup(first=not self.placed))
        stopped = sampling.stopped(self.placed)
        self._place(sampling.shares[-1], sampling.warmup(first=not self.placed))
        return stopped

    @property
    def calls(self):
        return sum(map(len, self.placed))


quick = st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=7)


@given(quick, st.lists(st.floats(0, 0.2), min_size=1, max_size=9))
def test_sampling_ends_for_the_reason_that_it_says(durations, shifts):
    simulated = Simulated(durations, shifts)
    stopped = simulated.run()
    medians = [statistics.median(samples) for samples in simulated.placed[:-1]]
    within = max(stopping.FINE * statistics.median(medians), stopping.TICK_S) * (1 + 1e-9)
    at_most = stopping.error(medians) * math.sqrt(len(medians) / 30)
    held = {
        "precise": stopping.error(medians) <= within,
        "scatters": len(medians) >= 10 and at_most * (1 + 1e-9) > within / (1 + 1e-9),
        "most calls": len(simulated.placed) == 30,
    }
    assert held[stopped], stopped
    assert 5 <= len(simulated.placed) <= 30
    assert {len(samples) for samples in simulated.placed} == {10}


def test_placements_that_differ_are_more_than_such_that_agree():
    alike, apart = Simulated([1e-4]), Simulated([1e-4], shifts=(0.0, 0.03, 0.002))
    assert (alike.run(), len(alike.placed)) == ("precise", 5)
    assert apart.run() == "precise"
    assert len(apart.placed) > 5


def test_placements_that_never_agree_are_not_all_tried():
    simulated = Simulated([1e-4], shifts=(0.0, 0.3))
    assert (simulated.run(), len(simulated.placed)) == ("scatters", 11)


def test_the_hosts_clock_need_not_tell_as_finely():
    simulated = Simulated([1e-4], shifts=(0.0, 0.05), instrument="wall")
    assert (simulated.run(), len(simulated.placed)) == ("precise", 5)


@given(st.floats(1e-3, 300), st.floats(0, 20))
def test_calls_of_any_length_stay_within_the_wall_time_of_a_case_or_are_two(each, max_time):
    simulated = Simulated([each])
    simulated.run(max_time=max_time)
    assert simulated.calls + simulated.warmups == 1 or simulated.now <= each + 10 * max_time


@pytest.mark.parametrize(
    ("each", "placements", "timed"), [(0.01, 5, 50), (0.15, 5, 50), (0.4, 5, 20), (2.3, 3, 3), (70, 1, 1), (600, 1, 1)]
)
def test_the_longer_a_call_the_fewer_of_it(each, placements, timed):
    simulated = Simulated([each])
    simulated.run()
    assert (len(simulated.placed), simulated.calls) == (placements, timed)


@given(st.integers(1, 50), st.integers(0, 9), st.floats(0.01, 100))
def test_numbers_of_calls_that_are_asked_for_are_exact(iters, warmup, each):
    simulated = Simulated([each])
    assert simulated.run(iters=iters, warmup=warmup, max_time=1e9) == "asked"
    assert simulated.calls == iters
    assert simulated.now == pytest.approx(each * (iters + warmup))
    assert len(simulated.placed) == min(5, iters)


def test_placements_lie_at_addresses_of_their_own(cpu):
    case = next(
        iter(
            read(["--routine", "mm_bf16", "--backends", "torch", "--m", "4", "--n", "16", "--k", "32"], all_routines())
        )
    )
    timing = walk(case, Measuring(iters=10), Checking(), cpu).measurement.timing
    seen = [address for placement in timing.placements for address in placement.addresses]
    assert len(timing.placements) == 5
    assert len(seen) == len(set(seen)) >= 15, "two inputs and an output each"
    assert [len(placement.samples) for placement in timing.placements] == [2] * 5


def test_a_placement_has_what_a_function_writes_and_not_what_it_holds():
    held, given = torch.ones(4), torch.ones(4)
    target = Target(lambda x, out: torch.add(x, held, out=out), (given,), {"out": held}, (held,))
    moved = target.elsewhere()
    assert moved.outputs[0].data_ptr() == moved.kwargs["out"].data_ptr() != held.data_ptr()
    closure = replace(target, kwargs={}).elsewhere()
    assert closure.outputs[0].data_ptr() == held.data_ptr(), "its function writes there wherever its inputs are"


@pytest.mark.parametrize("said", ["--benchmark-max-time=0.01", "marker"])
def test_a_long_call_is_made_once_and_the_row_and_the_table_say_so(pytester, said):
    marker = "@pytest.mark.benchmark(max_time=0.01)" if said == "marker" else ""
    pytester.makepyfile(f"""
        import time
        import pytest
        import torch

        {marker}
        def test_slow(perf):
            perf.time(lambda x: time.sleep(0.1), torch.ones(4))
    """)
    arguments = ["--perf-device=cpu", *([] if marker else [said])]
    result = pytester.runpytest("--benchmark-json=run.json", *arguments)
    result.assert_outcomes(passed=1)
    [row] = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert (row["stats"]["rounds"], row["options"]["max_time"]) == (1, 0.01)
    assert [row["extra_info"][name] for name in ("warmups", "stopped", "status")] == [1, "wall time", "ok"]
    result.stdout.re_match_lines(
        [r" +1\d\d\.\d ms +- +- +- +- +1 call", "1 case stopped early, after 1 call: their wall time was up, 10 times"]
    )
    assert any("| - | - | - | - | ok |" in line for line in markdown.lines(runs.read([pytester.path / "run.json"])))
    judged = pytester.runpytest("--perf-gate=run.json", "--perf-gate-allow=library", *arguments)
    judged.stdout.fnmatch_lines(["* flashinfer-perf gate *", "  *::test_slow"])


def test_exactly_as_many_calls_as_asked_for():
    calls = []
    measured = measure(lambda: calls.append(1), measuring=Measuring(iters=7, warmup=3), device="cpu")
    assert len(measured.samples) == 7
    assert len(calls) == 1 + 3 + 7, "one call to check the answer, the warm-up, the timed ones"


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=8)


@given(intervals)
def test_busy_is_the_union_of_the_kernels(spans):
    activities = [Activity(f"k{i}", start, start + length) for i, (start, length) in enumerate(spans)]
    ticks = {tick for start, length in spans for tick in range(start, start + length)}
    seen = summarise(activities)
    assert round(seen.busy_s * 1e9) == len(ticks)
    assert round(seen.span_s * 1e9) == max(ticks) + 1 - min(ticks)
    assert seen.launches == len(spans)


def test_a_trace_of_nothing_is_no_trace():
    assert summarise([]) is None


def test_names_of_kernels_in_launch_order_once_each():
    seen = summarise([Activity("merge", 9, 10), Activity("decode", 0, 4), Activity("decode", 4, 9)])
    assert seen.kernels == ("decode", "merge")


def test_clocks_come_from_the_sms_that_both_stamps_reached():
    now = 1_763_640_000_000_000_000  # nanoseconds of today: a double cannot hold their differences
    stamps = torch.zeros(2, 2, 4, 2, dtype=torch.int64)
    for sm in range(3):
        for call in range(2):
            stamps[0, call, sm] = torch.tensor([now, 5_000 * sm + 1])
            stamps[1, call, sm] = torch.tensor([now + 100 * (call + 1), 5_000 * sm + 1 + 175 * (call + 1)])
    stamps[1, 0, 2] = 0
    read = clocks.read(stamps)
    assert read.cycles == (175.0, 350.0)
    assert read.ghz == (1.75, 1.75)


def test_throttle_reasons_in_words():
    assert telemetry.reasons(0x04 | 0x20 | 0x01) == "power cap, thermal limit"
    assert telemetry.reasons(0x01) == "none"


def test_the_wall_instrument_goes_round_the_calls(cpu):
    made = []
    work = Work(tuple(lambda i=i: made.append(i) for i in range(3)), flush=True, device=cpu)
    assert all(duration > 0 for duration in Wall().sample(work, 4, 1))
    assert made == [0, 1, 2, 0, 1]


def test_a_new_batch_goes_on_where_the_last_one_stopped(cpu):
    """The sets that it has just used are in the cache."""
    made = []
    work = Work(tuple(lambda i=i: made.append(i) for i in range(8)), flush=False, device=cpu)
    for _ in range(2):
        Wall().sample(work, 2, 1)
    assert made == [0, 1, 2, 3, 4, 5]


def test_copies_that_are_used_once_leave_the_cache_before_the_first_call(monkeypatch):
    events = []
    monkeypatch.setattr(instruments, "_twice_the_cache", lambda _: events.append("read") or torch.zeros(1))
    measure(lambda x: events.append(x.data_ptr()), (torch.ones(4),), measuring=Measuring(iters=4, warmup=2))
    assert events.count("read") == 4, "before each placement"
    checked, *called = (event for event in events if event != "read")
    assert (len(called), called[0]) == (6, checked)
    assert len(set(called)) == 5, "the call that is tried is the check's; the others are each elsewhere"


def test_a_fallback_of_bench_gpu_time_is_an_error():
    complaint = pytest.raises(InstrumentError, match="did not measure with cupti: CUPTI is not installed")
    with complaint, instruments._no_fallback("cupti"):
        warnings.warn("CUPTI is not installed. Falling back to CUDA events.", UserWarning, stacklevel=1)


def test_other_warnings_of_bench_gpu_time_pass_through():
    with pytest.warns(UserWarning, match="something else"), instruments._no_fallback("cupti"):
        warnings.warn("something else", UserWarning, stacklevel=1)


def test_auto_says_what_a_better_instrument_is_missing(hopper, monkeypatch):
    pytest.importorskip("flashinfer")
    monkeypatch.setattr(instruments, "_cupti", lambda _: "cupti needs cupti-python: pip install it")
    chosen = instruments.choose("auto", hopper)
    assert chosen.instrument.name == "events"
    assert chosen.fallback == "measured with events, not cupti: cupti needs cupti-python: pip install it"


def test_an_instrument_by_name_is_that_one_or_an_error(cpu):
    with pytest.raises(InstrumentError, match="--perf-instrument=cupti: cupti needs an NVIDIA GPU"):
        instruments.choose("cupti", cpu)
    assert instruments.choose("wall", cpu).instrument.name == "wall"
    assert instruments.choose("auto", cpu).instrument.name == "wall"


def test_measure_outside_pytest():
    a = torch.randn(64, 64)
    out = torch.empty(64, 64)
    measured = measure(torch.mm, (a, a), {"out": out}, flops=2 * 64**3, bytes=3 * a.nbytes, out=out, reference=a @ a)
    assert measured.instrument == "wall"
    assert measured.median == statistics.median(measured.samples)
    assert measured.tflops == pytest.approx(2 * 64**3 / measured.median / 1e12)
    assert measured.tb_per_sec == pytest.approx(3 * a.nbytes / measured.median / 1e12)
    assert measured.checks[0].rule == ""


def test_an_output_is_passed_on_to_a_function_that_takes_it():
    a = torch.randn(8, 8)

    def keyword(x, *, out):
        out.copy_(-x)

    def positional(x, into):
        into.copy_(-x)

    def closure():
        written.copy_(-a)

    for function in (torch.neg, keyword):
        assert measure(function, (a,), out=torch.empty(8, 8), reference=-a).checks
    written = torch.empty(8, 8)
    assert measure(positional, (a, written), out=written, reference=-a).checks
    assert measure(closure, out=written, reference=-a, device="cpu").checks


def test_a_returned_answer_is_checked_too():
    a = torch.randn(8, 8)
    assert measure(torch.neg, (a,), reference=lambda: -a).checks
    with pytest.raises(WrongAnswerError, match="elements differ"):
        measure(torch.neg, (a,), reference=a)


def test_an_output_nobody_writes_is_wrong():
    out = torch.ones(8)
    with pytest.raises(WrongAnswerError, match="8 elements are NaN"):
        measure(lambda _: None, (torch.ones(8),), out=out, reference=torch.ones(8))


def test_the_answer_of_a_timed_call_is_checked():
    out, calls = torch.empty(8), []

    def right_once(x):
        calls.append(1)
        out.copy_(x if len(calls) == 1 else x + 1)

    with pytest.raises(WrongAnswerError, match="elements differ"):
        measure(right_once, (torch.ones(8),), out=out, reference=torch.ones(8))
    assert len(calls) > 10


class Ranges:
    """A stand-in of NVTX that notes which calls are made in which range."""

    def __init__(self):
        self.open, self.seen = [], []

    def range_push(self, name):
        self.open.append(name)

    def range_pop(self):
        self.open.pop()

    def call(self, *_arguments):
        self.seen.append(tuple(self.open))


@pytest.fixture
def ranges(monkeypatch):
    made = Ranges()
    for name in ("range_push", "range_pop"):
        monkeypatch.setattr(torch.cuda.nvtx, name, getattr(made, name))
    return made


class SaidToBeAGpu(Device):
    """The CPU's clock and memory, with a GPU's name: what is done for a GPU alone is done."""

    def synchronize(self):
        pass

    def free_bytes(self):
        return 1 << 30


def timed(ranges, device, monkeypatch):
    monkeypatch.setattr(run, "observe", lambda *_: ranges.call() or run.Observations())
    monkeypatch.setattr(nvrtc, "missing", lambda _device: "there is no GPU")
    target = run.Target(ranges.call, (torch.ones(4),), name="b1-{s16}-fa3")
    measuring = Measuring(instrument="wall", cold_l2="none", iters=3, warmup=2)
    run.run(target, measuring, device, cuda_graph=False, verify=ranges.call)


def test_a_profiler_finds_warm_ups_and_timed_calls_under_the_cases_id_and_nothing_else(ranges, hopper, monkeypatch):
    timed(ranges, SaidToBeAGpu(**vars(hopper)), monkeypatch)
    warm_up, timed_call, tried, looked_at, observed = ("b1-{s16}-fa3",), ("b1-{s16}-fa3",), (), (), ()
    places = [(timed_call, looked_at)] * 3
    assert ranges.seen == [tried, warm_up, *itertools.chain(*places), observed]
    assert not ranges.open


def test_on_a_cpu_there_is_no_range(ranges, cpu, monkeypatch):
    timed(ranges, cpu, monkeypatch)
    assert ranges.seen == [()] * 9


def test_a_case_is_shown_by_its_id_and_a_kernel_of_ones_own_by_its_test(pytester, monkeypatch):
    shown = []
    monkeypatch.setattr(run, "_range", lambda name, _device: contextlib.nullcontext(shown.append(name)))
    pytester.makepyfile("""
        import pytest
        import torch

        @pytest.mark.perf_cases("mm_bf16", "--m 2 --n 16 --k 32")
        def test_case(perf, case):
            perf(case)

        @pytest.mark.parametrize("n", [7])
        def test_own(perf, n):
            perf.time(torch.neg, torch.ones(n))
    """)
    pytester.runpytest("--perf-backends=torch", "--perf-iters=2", "--perf-device=cpu").assert_outcomes(passed=2)
    assert list(dict.fromkeys(shown)) == ["m2-n16-k32-torch", "test_own[7]"]
