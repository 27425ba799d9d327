"""What follows from the times of several processes, and what one clock for them is proved by."""

import statistics
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.config.settings import Checking, Measuring
from pytest_flashinfer_perf.kernel_timing.instruments import Work
from pytest_flashinfer_perf.kernel_timing.target import Target
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.measurement.measure import measure
from pytest_flashinfer_perf.ranks import joined, timing
from pytest_flashinfer_perf.ranks.clock import Spans
from pytest_flashinfer_perf.ranks.timing import LAST_TO_LAST, LONGEST, HostClock, Together

US = st.integers(0, 1_000_000)
TWICE = Measuring(iters=2, cold_l2="none")
ALLOWED = Checking(allow_output_mismatch=True)  # a rank that stopped would leave the other waiting


@st.composite
def collectives(draw):
    """Calls that no rank leaves before all have come, in true nanoseconds, and how wrong each rank's clock is."""
    ranks, calls = draw(st.integers(2, 4)), draw(st.integers(1, 6))
    arrivals = [[10**9 * call + draw(US) for call in range(calls)] for _ in range(ranks)]
    last = [max(call) for call in zip(*arrivals, strict=True)]
    ends = [[all_there + draw(US) for all_there in last] for _ in range(ranks)]
    return Spans(_fixed(arrivals), _fixed(ends)), draw(st.lists(st.integers(-(10**7), 10**7), min_size=4, max_size=4))


def _fixed(times):
    return tuple(map(tuple, times))


def read_by(clocks, true):
    shifted = [
        [[at + off for at in rank] for rank, off in zip(side, clocks, strict=False)]
        for side in (true.arrivals, true.ends)
    ]
    return Spans(*map(_fixed, shifted))


@given(collectives())
def test_one_clock_is_never_refuted_and_a_bound_holds(drawn):
    true, clocks = drawn
    assert true.violations == 0
    seen = read_by(clocks, true)
    if seen.violations == 0:
        size = len(true.ends)
        assert max(clocks[:size]) - min(clocks[:size]) <= seen.bound_ns


@given(collectives(), US)
def test_lateness_is_in_the_longest_span_and_not_in_the_figure(drawn, late):
    true, _ = drawn
    arrivals = (*true.arrivals[:-1], tuple(at + late for at in true.arrivals[-1]))
    last = [max(call) for call in zip(*arrivals, strict=True)]
    ends = _fixed([[at + 5000 for at in last] for _ in arrivals])
    seen = Spans(arrivals, ends)
    assert seen.last_to_last == [5000 / 1e9] * len(last)
    assert all(longest >= 5000 / 1e9 for longest in seen.longest)


@given(collectives())
def test_own_spans_need_no_common_clock(drawn):
    true, clocks = drawn
    assert read_by(clocks, true).longest == true.longest
    assert read_by(clocks, true).each_from_its_own_start == true.each_from_its_own_start


def all_reduced(x):
    y = x.clone()
    dist.all_reduce(y)
    return y


class SlowAfterIdling:
    """A clock of which the first call of several takes longer than the next; its trace says how late the last was."""

    name, trace = "slow after idling", None

    def spans(self, _work, count, late_s):
        self.trace = late_s
        return [(0, 109_000), *[(0, 12_000)] * (count - 1)]


def _stale(group):
    """What is said of a call that keeps what the other rank gave to its first one."""
    kept, x = [], torch.randn(64, generator=torch.Generator().manual_seed(group.rank))

    def stale(x):
        kept[:] = kept or [sum(group.all(x)) - x]
        return x + kept[0]

    seen = measure(stale, (x,), reference=lambda: sum(group.all(x)), measuring=TWICE, checking=ALLOWED)
    return seen.verdict.faults


def _in_a_rank(rank, folder):
    """One clock and a late rank, then clocks that are a second apart; what is seen is left in a file."""
    group = joined.join(rank, 2, Path(folder, "store"), devices.find("cpu"))
    stale = _stale(group)
    work = Work((partial(dist.all_reduce, torch.ones(64)),), flush=False, device=group.device)
    together = Together(group, HostClock(group))
    late = together._spans(work, 15, late_s=0.02 if rank == 1 else 0.0)
    known = together.sample(work, 5, 1)
    one = together.described(work)
    apart = HostClock(group, now=lambda: HostClock.now() + rank * 10**9)
    differs = Together(group, apart)
    own = differs.sample(work, 5, 0)
    idle = Together(group, SlowAfterIdling())
    samples = [idle.sample(work, 5, 2), idle.sample(work, 5, 2)]
    timing.chosen = lambda *_: (idle, "")
    target = Target(all_reduced, (torch.ones(64),))
    seen = timing.run(group, target, TWICE, cuda_graph=False, verify=lambda *_: None).seen
    slow = (samples, idle.described(work), seen.trace)
    torch.save([late, known, one, own, differs.described(work), slow, stale], Path(folder, f"seen-{rank}"))
    joined.leave()


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    processes.spawn(_in_a_rank, (str(folder),), 2)
    return [torch.load(folder / f"seen-{rank}", weights_only=False) for rank in range(2)]


def test_ranks_prove_their_clock_or_fall_back_to_own_spans(of_ranks):
    (late, known, one, own, differs, *_), other = of_ranks
    assert (known, own) == (other[1], other[3]), "every rank has the same samples"
    assert (one.figure, one.clock_violations) == (LAST_TO_LAST, 0)
    assert 0 < one.clock_bound_ns < 10**9
    assert statistics.median(late.longest) > 0.02 > 2 * statistics.median(late.last_to_last)
    assert (differs.figure, differs.clock_bound_ns) == (LONGEST, None)
    assert differs.clock_violations == differs.clock_calls
    assert 0 < statistics.median(one.seconds for one in own) < 0.5
    assert one.conditions != differs.conditions


def test_the_first_call_after_idling_is_not_timed_and_lateness_is_in_no_trace(of_ranks):
    for *_, (samples, described, trace), _ in of_ranks:
        assert [[one.seconds for one in placement] for placement in samples] == [[12e-6] * 5] * 2
        assert described.late_figure_s == 12e-6
        assert max(map(max, described.ends_s)) == 12e-6
        assert trace == 0.0


def test_a_stale_buffer_is_right_until_the_inputs_of_all_ranks_have_changed(of_ranks):
    for *_, faults in of_ranks:
        assert len(faults) == 1
        assert faults[0].startswith("of one more call with its input")
