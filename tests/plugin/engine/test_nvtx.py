"""A profiler finds the timed calls in a range with the case's id."""

import contextlib

import pytest
import torch
from said_to_be import SaidToBeAGpu

from pytest_flashinfer_perf import Measuring
from pytest_flashinfer_perf.engine import timing
from pytest_flashinfer_perf.machine import nvrtc


class Ranges:
    """A stand-in of NVTX that notes which calls are made in which range."""

    def __init__(self):
        self.open, self.seen = [], []

    def call(self, *_arguments):
        self.seen.append(tuple(self.open))


@pytest.fixture
def ranges(monkeypatch):
    made = Ranges()
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", made.open.append)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", made.open.pop)
    return made


def timed(ranges, device, monkeypatch):
    monkeypatch.setattr(timing, "_observe", lambda *_: ranges.call() or timing.Observations())
    monkeypatch.setattr(nvrtc, "missing", lambda _device: "there is no GPU")
    target = timing.Target(ranges.call, (torch.ones(4),), name="b1-{s16}-fa3")
    measuring = Measuring(instrument="wall", cold_l2="none", iters=3, warmup=4)
    timing.run(target, measuring, device, cuda_graph=False, verify=ranges.call)


def test_a_profiler_finds_warm_ups_and_timed_calls_under_the_cases_id_and_nothing_else(ranges, hopper, monkeypatch):
    timed(ranges, SaidToBeAGpu(**vars(hopper)), monkeypatch)
    pilot, warmed_up, timed_call, looked_at, observed = (), ("b1-{s16}-fa3",), ("b1-{s16}-fa3",), (), ()
    assert ranges.seen == [pilot, *[warmed_up, timed_call, looked_at] * 3, observed]
    assert not ranges.open


def test_on_a_cpu_there_is_no_range(ranges, cpu, monkeypatch):
    timed(ranges, cpu, monkeypatch)
    assert ranges.seen == [()] * 11


def test_a_case_is_shown_by_its_id_and_a_kernel_of_ones_own_by_its_test(session, monkeypatch):
    shown = []
    monkeypatch.setattr(timing, "_range", lambda name, _device: contextlib.nullcontext(shown.append(name)))
    own = """
        import pytest
        import torch

        @pytest.mark.perf_cases("mm_bf16", "--m 2 --n 16 --k 32")
        def test_case(perf, case): perf(case)

        @pytest.mark.parametrize("n", [7])
        def test_own(perf, n): perf.time(torch.neg, torch.ones(n))
    """
    assert session("--perf-backends=torch", test_own=own).outcomes == {"passed": 2}
    assert list(dict.fromkeys(shown)) == ["m2-n16-k32-torch", "test_own[7]"]
