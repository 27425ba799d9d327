"""What follows from the times of several processes."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_flashinfer_perf.extensions.ranks.clock import Spans

US = st.integers(0, 1_000_000)


@st.composite
def collectives(draw):
    """Calls that no rank leaves before all have come, in true nanoseconds, and how wrong each rank's clock is."""
    ranks, calls = draw(st.integers(2, 4)), draw(st.integers(1, 6))
    arrivals = [[10**18 + 10**9 * call + draw(US) for call in range(calls)] for _ in range(ranks)]
    last = [max(call) for call in zip(*arrivals, strict=True)]
    ends = [[all_there + draw(US) for all_there in last] for _ in range(ranks)]
    clocks = st.lists(st.integers(-(10**7), 10**7), min_size=ranks, max_size=ranks)
    return spans(arrivals, ends), draw(clocks)


def spans(arrivals, ends):
    return Spans.of([list(zip(*rank, strict=True)) for rank in zip(arrivals, ends, strict=True)])


def read_by(clocks, true):
    off = torch.tensor(clocks)[:, None]
    return Spans(true.arrivals + off, true.ends + off)


@given(collectives(), US)
def test_lateness_is_in_the_longest_span_and_not_in_the_figure(drawn, late):
    true, _ = drawn
    arrivals = true.arrivals.tolist()
    arrivals[-1] = [at + late for at in arrivals[-1]]
    last = [max(call) for call in zip(*arrivals, strict=True)]
    seen = spans(arrivals, [[at + 5000 for at in last] for _ in arrivals])
    assert seen.last_to_last == [5000 / 1e9] * len(last)
    assert all(longest >= 5000 / 1e9 for longest in seen.longest)


@given(collectives())
def test_own_spans_need_no_common_clock_and_placements_are_joined_call_by_call(drawn):
    true, clocks = drawn
    assert read_by(clocks, true).longest == true.longest
    both = Spans.joined([true, true])
    assert (both.longest, both.skew) == (true.longest * 2, true.skew)


@given(collectives())
def test_how_far_clocks_have_drifted_is_taken_off_what_ranks_begin_at_once(drawn):
    true, clocks = drawn
    first = true.arrivals[0].tolist()
    called = spans([first] * len(clocks), true.ends.tolist())
    seen = read_by(clocks, called).aligned
    assert seen.last_to_last == called.last_to_last
    assert (seen.skew, seen.end_skew) == (0, called.end_skew)
