"""How many calls are timed, at how many placements, and what ends them."""

import itertools
import json
import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf import Measuring, measure
from pytest_flashinfer_perf.config.settings import Checking
from pytest_flashinfer_perf.kernel_timing import stopping
from pytest_flashinfer_perf.kernel_timing.instruments import INSTRUMENTS, CallTime
from pytest_flashinfer_perf.kernel_timing.target import Target
from pytest_flashinfer_perf.machine.load import Contention
from pytest_flashinfer_perf.measurement.one_case import run_case
from pytest_flashinfer_perf.report import markdown, story
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.spec.case import parse


class Simulated:
    """Calls that take their time by a wall clock of their own; each placement shifts it by a share."""

    def __init__(self, durations, shifts=(0.0,), instrument="cupti"):
        self.now, self.instrument, self.placed, self.warmups = 0.0, instrument, [], 0
        self.shared = []
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
        self.shared.append(warmup)
        self.placed.append([self._call(shift) for _ in range(calls)])

    def run(self, **how):
        asked = Measuring(**how)
        each = self._call() if stopping.makes_trial(asked) else 1e-9
        budget = stopping.budget(asked, lambda: self.now)
        sampling = stopping.Sampling(asked, self.instrument, each, budget)
        while calls := sampling.elsewhere(self.placed):
            self._place(calls, sampling.warmup(self.untimed(asked), len(self.placed)))
        stopped = sampling.stopped(self.placed)
        self._place(sampling.own(self.placed), sampling.warmup(self.untimed(asked), len(self.placed), last=True))
        return stopped

    def untimed(self, asked):
        return self.warmups + stopping.makes_trial(asked)

    @property
    def calls(self):
        return sum(map(len, self.placed))


@given(st.integers(1, 40), st.integers(0, 60))
def test_untimed_calls_are_as_many_as_asked_for_and_shared_out(iters, warmup):
    """As `--dry_run_iters 5 --num_iters 30` asks; the one that shows how long a call takes is one of them."""
    simulated = Simulated([1e-5])
    simulated.run(iters=iters, warmup=warmup)
    assert simulated.warmups + stopping.makes_trial(Measuring(warmup=warmup)) == warmup
    placements = len(simulated.placed)
    assert warmup < placements or all(simulated.shared[1:])
    assert max(simulated.shared) <= -(-warmup // placements)


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
def test_numbers_of_calls_that_are_asked_for_are_exact_however_long_they_take(iters, warmup, each):
    for max_time in (1e9, each / 20):
        simulated = Simulated([each])
        assert simulated.run(iters=iters, warmup=warmup, max_time=max_time) == "asked"
        assert simulated.calls == iters
        assert simulated.now == pytest.approx(each * (iters + warmup))
        assert len(simulated.placed) == min(5, iters) or max_time < each


def test_placements_lie_at_addresses_of_their_own(cpu):
    words = ["--routine", "mm_bf16", "--backends", "torch", "--m", "4", "--n", "16", "--k", "32"]
    (case,) = parse(words, all_routines()).cases()
    timing = run_case(case, Measuring(iters=10), Checking(), cpu).measurement.timing
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
    assert [row["extra_info"][name] for name in ("warmups", "stopped")] == [1, "wall time"]
    status = row["extra_info"]["status"]
    assert status == ("noisy" if Contention(**row["extra_info"]["contention"]).is_busy else "ok")
    told = "1 call" if status == "ok" else status
    result.stdout.re_match_lines(
        [rf" +1\d\d\.\d ms +- +- +- +- +{told}", "1 case stopped early, after 1 call: their wall time was up, 10 times"]
    )
    shown = markdown.lines(story.read([pytester.path / "run.json"]))
    assert any(f"| - | - | - | - | {status} |" in line for line in shown)
    judged = pytester.runpytest("--perf-gate=run.json", "--perf-gate-allow=library", *arguments)
    judged.stdout.fnmatch_lines(["* flashinfer-perf gate *", "  *::test_slow"])


def test_exactly_as_many_calls_as_asked_for():
    calls = []
    measured = measure(lambda: calls.append(1), measuring=Measuring(iters=7, warmup=3), device="cpu")
    assert len(measured.samples) == 7
    assert len(calls) == 1 + 3 + 7, "one call to check the answer, the warm-up, the timed ones"


@pytest.mark.parametrize(("known", "placements", "stopped"), [(True, 5, "precise"), (False, 11, "scatters")])
def test_gaps_that_scatter_take_no_placements(known, placements, stopped, monkeypatch):
    class Gapped:
        """Kernels of 50 us, with gaps that differ from placement to placement."""

        name, gaps = "cupti", itertools.cycle((10e-6, 60e-6, 30e-6))

        def missing(self, _device):
            return None

        def sample(self, _work, count, _warmup):
            gap = next(self.gaps)
            return [CallTime(50e-6 + gap, 50e-6 if known else None) for _ in range(count)]

    monkeypatch.setitem(INSTRUMENTS, "cupti", Gapped())
    timing = measure(lambda _: None, (torch.ones(4),), measuring=Measuring(instrument="cupti")).timing
    assert (len(timing.placements), timing.stopped) == (placements, stopped)
    assert timing.busy == ((50e-6,) * 50 if known else ())
