"""How many calls are timed, at how many placements, and what ends them."""

import itertools
import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scripted import Scripted

from pytest_flashinfer_perf import Measuring, measure
from pytest_flashinfer_perf.engine import stopping, timing
from pytest_flashinfer_perf.engine.instruments import INSTRUMENTS, CallTime, ChosenInstrument
from pytest_flashinfer_perf.engine.one_case import run_case
from pytest_flashinfer_perf.engine.target import Target
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.settings.settings import Checking
from pytest_flashinfer_perf.spec.case import parse


class Simulated(Scripted):
    """Its clock goes on by each call that is made, timed or not; each placement shifts its calls by a share."""

    def __init__(self, durations, shifts=(0.0,), name="cupti"):
        super().__init__(*durations, reading=0.0)
        self.name, self.shift, self.placed, self.warmups = name, 0.0, [], []
        self._shifts = itertools.cycle(shifts)

    def call(self):
        took = self.seconds_of(None) * (1 + self.shift)
        self._now += took
        return took

    def sample(self, work, count, warmup):
        self.shift = next(self._shifts)
        self.warmups.append(sum(work() > 0 for _ in range(warmup)))
        self.placed.append([work() for _ in range(count)])
        return list(map(CallTime, self.placed[-1]))

    def run(self, **how):
        conditions = timing.Conditions(lambda *_: ChosenInstrument(self))
        asked = Measuring(cold_l2="none", **how)
        on = {"cuda_graph": False, "verify": lambda *_: None, "conditions": conditions}
        return timing.run(Target(self.call), asked, devices.find("cpu"), **on)


@given(st.integers(1, 40), st.integers(0, 60))
def test_untimed_calls_are_as_many_as_asked_for_and_shared_out(iters, warmup):
    """As `--dry_run_iters 5 --num_iters 30` asks; the one that shows how long a call takes is one of them."""
    simulated = Simulated([1e-5])
    assert simulated.run(iters=iters, warmup=warmup).warmups == warmup
    assert sum(simulated.warmups) + (warmup > 0) == warmup
    placements = len(simulated.placed)
    assert warmup < placements or all(simulated.warmups[1:])
    assert max(simulated.warmups) <= -(-warmup // placements)


quick = st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=7)


@given(quick, st.lists(st.floats(0, 0.2), min_size=1, max_size=9))
def test_sampling_ends_for_the_reason_that_it_says(durations, shifts):
    simulated = Simulated(durations, shifts)
    stopped = simulated.run().stopped
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


@pytest.mark.parametrize(
    ("shifts", "instrument", "stopped", "placements"),
    [
        ((0.0,), "cupti", "precise", 5),
        ((0.0, 0.03, 0.002), "cupti", "precise", 23),
        ((0.0, 0.3), "cupti", "scatters", 11),
        ((0.0, 0.05), "wall", "precise", 5),  # the host's clock need not tell as finely
    ],
)
def test_placements_that_differ_are_more_than_such_that_agree_unless_they_never_do(
    shifts, instrument, stopped, placements
):
    timing = Simulated([1e-4], shifts, instrument).run()
    assert (timing.stopped, len(timing.placements)) == (stopped, placements)


@given(st.floats(1e-3, 300), st.floats(0, 20))
def test_calls_of_any_length_stay_within_the_wall_time_of_a_case_or_are_two(each, max_time):
    simulated = Simulated([each])
    timing = simulated.run(max_time=max_time)
    assert len(timing.samples) + sum(simulated.warmups) == 1 or simulated.now() <= each + 10 * max_time


@pytest.mark.parametrize(
    ("each", "placements", "timed"), [(0.01, 5, 50), (0.15, 5, 50), (0.4, 5, 20), (2.3, 3, 3), (70, 1, 1), (600, 1, 1)]
)
def test_the_longer_a_call_the_fewer_of_it(each, placements, timed):
    timing = Simulated([each]).run()
    assert (len(timing.placements), len(timing.samples)) == (placements, timed)


@given(st.integers(1, 50), st.integers(0, 9), st.floats(0.01, 100))
def test_numbers_of_calls_that_are_asked_for_are_exact_however_long_they_take(iters, warmup, each):
    for max_time in (1e9, each / 20):
        simulated = Simulated([each])
        timing = simulated.run(iters=iters, warmup=warmup, max_time=max_time)
        assert (timing.stopped, len(timing.samples)) == ("asked", iters)
        assert simulated.now() == pytest.approx(each * (iters + warmup))
        assert len(simulated.placed) == min(5, iters) or max_time < each


def test_no_call_is_untimed_if_none_may_be():
    """The first placement has one call, which tells how many more there is time for."""
    simulated = Simulated([1e-3])
    assert simulated.run(warmup=0).warmups == sum(simulated.warmups) == 0
    assert list(map(len, simulated.placed)) == [1, 10, 10, 10, 10]


def test_placements_lie_at_addresses_of_their_own(cpu):
    words = ["--routine", "mm_bf16", "--backends", "torch", "--m", "4", "--n", "16", "--k", "32"]
    (case,) = parse(words, all_routines()).cases()
    timing = run_case(case, Measuring(iters=10), Checking(), cpu).measurement.timing
    seen = [address for placement in timing.placements for address in placement.addresses]
    assert len(seen) == len(set(seen)) >= 15, "two inputs and an output each"
    assert [len(placement.samples) for placement in timing.placements] == [2] * 5


def test_a_placement_has_what_a_function_writes_and_not_what_it_holds():
    held, given = torch.ones(4), torch.ones(4)
    target = Target(lambda x, out: torch.add(x, held, out=out), (given,), {"out": held}, (held,))
    moved = target.at_new_addresses()
    assert moved.outputs[0].data_ptr() == moved.kwargs["out"].data_ptr() != held.data_ptr()
    closure = replace(target, kwargs={}).at_new_addresses()
    assert closure.outputs[0].data_ptr() == held.data_ptr(), "its function writes there wherever its inputs are"


LONG = """
import pytest, scripted, torch

@pytest.fixture(autouse=True)
def _slow():
    scripted.install(scripted.Scripted(0.1, reading=0.1))

def test_slow(perf): perf.time(torch.neg, torch.ones(4))

@pytest.mark.benchmark(max_time=0.4)
def test_marked(perf): perf.time(torch.neg, torch.ones(4))
"""


def test_a_long_call_is_made_once_and_the_row_and_the_table_say_so(session):
    done = session("--perf-device=cpu", "--benchmark-max-time=0.01", quick=False, test_long=LONG)
    assert done.outcomes == {"passed": 2}
    slow, marked = done["test_slow"], done["test_marked"]
    assert [(row["stats"]["rounds"], row["options"]["max_time"]) for row in (slow, marked)] == [(1, 0.01), (31, 0.4)]
    assert [slow["extra_info"][name] for name in ("warmups", "stopped", "status")] == [1, "wall time", "ok"]
    done.says(
        "*::test_slow * 100.0 ms *1 call", "1 case stopped early, after 1 call: their wall time was up, 10 times*"
    )


@pytest.mark.parametrize(("known", "placements", "stopped"), [(True, 5, "precise"), (False, 11, "scatters")])
def test_gaps_that_scatter_take_no_placements(known, placements, stopped, monkeypatch):
    class Gapped(Scripted):
        """Kernels of 50 us, with gaps that differ from placement to placement."""

        name, gaps = "cupti", itertools.cycle((10e-6, 60e-6, 30e-6))

        def sample(self, _work, count, _warmup):
            gap = next(self.gaps)
            return [CallTime(50e-6 + gap, 50e-6 if known else None) for _ in range(count)]

    monkeypatch.setitem(INSTRUMENTS, "cupti", Gapped())
    timing = measure(lambda _: None, (torch.ones(4),), measuring=Measuring(instrument="cupti")).timing
    assert (len(timing.placements), timing.stopped) == (placements, stopped)
    assert timing.busy == ((50e-6,) * 50 if known else ())


@pytest.mark.parametrize(("took", "timed"), [(0.0, 19), (6.0, 7), (60.0, 2)])
def test_inputs_and_checks_are_part_of_the_wall_time_of_a_case(monkeypatch, took, timed):
    """A second is kept for the timed calls."""
    simulated = Simulated([0.4], name="wall")
    monkeypatch.setitem(INSTRUMENTS, "wall", simulated)

    def reference():
        simulated._now += took
        return torch.ones(4)

    def function(out):
        out.fill_(1)
        return simulated.call()

    how = Measuring(cold_l2="none", instrument="wall")
    seen = measure(function, out=torch.empty(4), reference=reference, measuring=how).timing
    assert len(seen.samples) == timed
    assert simulated.now() < max(10, took + 3) + 1e-6


def test_what_compiles_or_tunes_is_not_part_of_it():
    now = iter((1.0, 2.0, 50.0, 53.0)).__next__
    clock = stopping.CaseClock(now)
    with clock.halted():
        pass
    assert clock.seconds == 53 - 1 - 48
