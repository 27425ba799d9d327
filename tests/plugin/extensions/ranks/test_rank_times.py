"""What is told of times of several ranks."""

from pytest_flashinfer_perf.extensions.ranks.rank_times import BUS_FACTORS, RankTimes
from pytest_flashinfer_perf.extensions.ranks.timing import LinkRoof


def ranks(**more):
    known = {"ranks": 4, "collective": "all_reduce", "figure": "last end", "backend": "nccl", "transport": "ring"}
    counted = dict.fromkeys(("clock_violations", "clock_calls"), 0) | {"clock_bound_ns": 100}
    times = dict.fromkeys(("max_over_ranks_s", "arrival_skew_s", "end_skew_s", "late_s", "late_figure_s"), 0.0)
    return RankTimes(**{**known, **counted, **times, "arrivals_s": (), "ends_s": (), **more})


def test_bandwidths_of_ranks_are_those_of_their_links():
    assert {name: factor(4) for name, factor in BUS_FACTORS.items()} == {
        "all_reduce": 1.5, "all_gather": 0.75, "reduce_scatter": 0.75, "all_to_all": 0.75, "broadcast": 1, "reduce": 1,
    }  # fmt: skip
    carried = ranks(links_gb_per_s={"nvlink": 6.0}).carrying(2e9, 1.0)
    assert (carried.busbw_gb_per_s, carried.shares()) == (3.0, {"nvlink": 50.0})
    assert ranks().carrying(None, 1.0).shares() == ranks(collective=None).carrying(1e9, 1.0).shares() == {}
    assert ranks().conditions == "4 ranks over nccl (ring), last end"
    assert (ranks().is_without_multicast, ranks(transport="multicast allowed").is_without_multicast) == (True, False)


def test_calls_of_several_processes_are_held_against_their_links():
    links = {"measured": 4.0, "datasheet": 6.0}
    seen = LinkRoof(ranks(links_gb_per_s=links)).reached(2e9, 1.0, "datasheet")
    assert (seen.sol_pct, seen.bound, seen.peaks, seen.limit_pct) == (50.0, "link", "datasheet", 50.0)
    assert seen.parts["ranks"].busbw_gb_per_s == 3.0
    with_multicast = ranks(links_gb_per_s=links, transport="multicast allowed")
    assert LinkRoof(with_multicast).reached(2e9, 1.0, "measured").limit_pct is None, "fewer bytes cross the links"
    unknown = LinkRoof(ranks(links_gb_per_s=links)).reached(None, 1.0, "measured")
    assert (unknown.sol_pct, unknown.bound, unknown.parts["ranks"].ranks) == (None, None, 4)
