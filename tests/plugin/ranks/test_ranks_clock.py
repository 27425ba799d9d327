"""What follows from the times of several processes, and what one clock for them is proved by."""

from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.ranks.clock import Spans

US = st.integers(0, 1_000_000)


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
