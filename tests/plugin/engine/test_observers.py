"""What a caller's observers see of a call, and a roof of its own, become parts of its row."""

from functools import partial

import pytest
import torch

from pytest_flashinfer_perf.engine import describe
from pytest_flashinfer_perf.engine.call import CallSpec
from pytest_flashinfer_perf.engine.measure import Measurement, alone, measure_call
from pytest_flashinfer_perf.engine.observers import Observation, Reached
from pytest_flashinfer_perf.engine.timing import Observations, Timing
from pytest_flashinfer_perf.rows.row import Identity
from pytest_flashinfer_perf.settings.settings import Measuring

TWICE = Measuring(iters=2, warmup=1, instrument="wall")


class Thermometer:
    name = "heat"

    def __init__(self, part):
        self.part, self.seen = part, []

    def observed(self, target, device, seconds, traced):
        target()
        self.seen.append((str(device.torch), seconds, traced))
        return Observation(self.part, ("it was hot", "it was hot"))


def row_of(measured):
    return describe.of_measurement(Identity(case="mine"), measured, None, "measured")


def test_an_observer_looks_once_after_all_calls_and_has_a_part_of_the_row():
    calls = []
    hot, blind = Thermometer({"celsius": 80}), Thermometer(None)
    blind.name = "blind"
    call = CallSpec(lambda x: calls.append(x.clone()), (torch.ones(2),))
    measured = measure_call(call, TWICE, time_calls=partial(alone, observers=(hot, blind)))
    assert hot.seen == [("cpu", measured.median, None)], "nothing is traced on a CPU"
    assert torch.equal(calls[-1], torch.ones(2))
    row = row_of(measured)
    assert row.parts == {"heat": {"celsius": 80}}
    assert row.execution.notes.count("it was hot") == 1


class Pipe:
    """A roof of 10 bytes per second."""

    def __init__(self, limit):
        self.limit = limit

    def reached(self, moved, seconds, choice):
        share = 100 * moved / seconds / 10
        return Reached(share, "link", choice, self.limit and share, {"pipe": moved})


@pytest.mark.parametrize(("limit", "status"), [(True, "invalid"), (False, "ok")])
def test_calls_with_a_roof_of_their_own_are_held_against_that(cpu, limit, status):
    timing = Timing((2.0,) * 3, "cupti", "rotate", 1, cuda_graph=False, observations=Observations(roof=Pipe(limit)))
    row = row_of(Measurement(timing, cpu, bytes=30.0))
    work = row.throughput
    assert (work.sol_pct, work.bound, work.peaks, row.status) == (150.0, "link", "measured", status)
    assert row.parts == {"pipe": 30.0}
