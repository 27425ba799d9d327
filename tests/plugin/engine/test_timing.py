"""What an instrument reads, what a trace and a clock pass say, and `measure` outside pytest."""

import statistics
import time
import warnings
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf import Measuring, measure
from pytest_flashinfer_perf.engine import clocks, instruments
from pytest_flashinfer_perf.engine.cupti import Activity, summarise
from pytest_flashinfer_perf.engine.instruments import InstrumentError, Wall, Work
from pytest_flashinfer_perf.engine.target import FEWEST_CALLS, MOST_PARTS, Restoration
from pytest_flashinfer_perf.machine import provenance

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=8)


@given(intervals)
def test_busy_is_the_union_of_the_kernels(spans):
    activities = [Activity(f"k{i}", start, start + length) for i, (start, length) in enumerate(spans)]
    ticks = {tick for start, length in spans for tick in range(start, start + length)}
    seen = summarise(activities)
    assert round(seen.busy_s * 1e9) == len(ticks)
    assert round(seen.span_s * 1e9) == max(ticks) + 1 - min(ticks)
    assert seen.launches == len(spans)


def test_a_trace_has_the_names_of_kernels_in_launch_order_once_each():
    seen = summarise([Activity("merge", 9, 10), Activity("decode", 0, 4), Activity("decode", 4, 9)])
    assert (seen.kernels, seen.kernel_runs) == (("decode", "merge"), (2, 1))
    assert seen.kernel_s == pytest.approx((9e-9, 1e-9))
    assert summarise([]) is None


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


@pytest.mark.parametrize(
    ("in_queue", "cycles", "queued"),
    [
        ([True, True, True], (100.0, 200.0, 900.0), True),
        ([True, True, False], (100.0, 200.0), True),  # a full queue let the GPU catch up with the last one
        ([True, False, False], (100.0, 200.0, 900.0), False),
    ],
)
def test_cycles_are_those_of_calls_that_were_queued_if_most_were(in_queue, cycles, queued):
    stamps = torch.ones(2, 3, 4, 2, dtype=torch.int64)
    for call, each in enumerate((100, 200, 900)):
        stamps[1, call] += each
    read = clocks.of_queued(stamps, in_queue)
    assert (read.cycles, read.queued) == (cycles, queued)


@pytest.mark.parametrize(("bits", "words"), [(0x04 | 0x20 | 0x01, "power cap, thermal limit"), (0x01, "none")])
def test_throttle_reasons_in_words(monkeypatch, bits, words):
    library = SimpleNamespace(nvmlDeviceGetCurrentClocksThrottleReasons=lambda _handle: bits)
    monkeypatch.setattr(provenance, "nvml", lambda: library)
    assert provenance.throttle("handle") == words


def test_the_wall_instrument_goes_round_the_calls_on_from_where_the_last_batch_stopped(cpu):
    """The sets that it has just used are in the cache."""
    made = []
    work = Work(tuple(lambda i=i: made.append(i) for i in range(5)), flush=True, device=cpu)
    assert [len(Wall().sample(work, count, 1)) for count in (2, 3)] == [2, 3]
    assert made == [0, 1, 2, 3, 4, 0, 1]
    assert (Wall().missing(cpu), Wall().now() <= Wall().now()) == (None, True)


@pytest.mark.more
def test_the_hosts_clock_sees_how_long_a_call_takes():
    timing = measure(lambda: time.sleep(0.01), measuring={"iters": 3}, device="cpu").timing
    assert timing.instrument == "wall"
    assert min(timing.samples) >= 0.01


def test_copies_leave_the_cache_before_the_first_call(monkeypatch):
    events = []
    monkeypatch.setattr(instruments, "_twice_the_cache", lambda _: events.append("read") or torch.zeros(1))
    measure(lambda x: events.append(x.data_ptr()), (torch.ones(4),), measuring=Measuring(iters=4, warmup=2))
    assert events.count("read") == 4, "before each placement"
    checked, *called = (event for event in events if event != "read")
    assert (len(called), called[0]) == (6, checked)
    assert len(set(called)) == 5, "the call that is tried is the check's; the others are each elsewhere"


def test_a_fallback_of_bench_gpu_time_is_an_error_and_no_other_warning_is():
    complaint = pytest.raises(InstrumentError, match="did not measure with cupti: CUPTI is not installed")
    with complaint, instruments._no_fallback("cupti"):
        warnings.warn("CUPTI is not installed. Falling back to CUDA events.", UserWarning, stacklevel=1)
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
    a, written = torch.randn(8, 8), torch.empty(8, 8)

    def keyword(x, *, out):
        out.copy_(-x)

    calls = [(torch.neg, (a,)), (keyword, (a,)), (lambda x, into: into.copy_(-x), (a, written))]
    for fn, args in (*calls, (lambda: written.copy_(-a), ())):
        assert measure(fn, args, out=written, reference=-a, device="cpu").checks


@given(st.integers(1, 200), st.integers(1, 40))
def test_changed_arguments_are_restored_after_calls_enough_for_one_slow_first_call(calls, sets):
    parts = list(Restoration((), sets).parts(calls))
    assert sum(parts) == calls
    assert len(parts) <= MOST_PARTS
    assert len(parts) == 1 or parts[0] >= FEWEST_CALLS
