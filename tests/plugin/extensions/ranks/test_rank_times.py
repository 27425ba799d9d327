"""What is told of times of several ranks."""

import pytest

from pytest_flashinfer_perf.extensions.ranks.rank_times import BUS_FACTORS, RankTimes
from pytest_flashinfer_perf.extensions.ranks.timing import LinkRoof


def ranks(**more):
    known = {"ranks": 4, "collective": "all_reduce", "backend": "nccl", "transport": "no multicast"}
    times = dict.fromkeys(("max_over_ranks_s", "arrival_skew_s", "end_skew_s"), 0.0)
    return RankTimes(**{**known, **times, **more})


def test_calls_of_several_processes_are_held_against_their_links():
    assert {name: factor(4) for name, factor in BUS_FACTORS.items()} == {
        "all_reduce": 1.5, "all_gather": 0.75, "reduce_scatter": 0.75, "all_to_all": 0.75, "broadcast": 1, "reduce": 1,
    }  # fmt: skip
    seen = LinkRoof(ranks(), 6.0).reached(2e9, 1.0, "measured")
    assert (seen.sol_pct, seen.bound, seen.peaks, seen.limit_pct) == (50.0, "link", "datasheet", 50.0)
    assert seen.parts["ranks"].busbw_gb_per_s == 3.0
    with_multicast = ranks(transport="multicast allowed")
    assert LinkRoof(with_multicast, 6.0).reached(2e9, 1.0, "datasheet").limit_pct is None, "fewer bytes cross the links"
    assert ranks().conditions == "4 ranks over nccl (no multicast)"


@pytest.mark.parametrize(
    ("collective", "link", "moved"), [(None, 6.0, 1e9), ("all_reduce", None, 1e9), ("reduce", 6.0, None)]
)
def test_what_is_not_known_has_no_share(collective, link, moved):
    seen = LinkRoof(ranks(collective=collective), link).reached(moved, 1.0, "datasheet")
    assert (seen.sol_pct, seen.bound, seen.parts["ranks"].ranks) == (None, None, 4)
