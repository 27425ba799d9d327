"""Calls that are alike become few cases: no call is lost, and the sum is as near as it is said to be."""

import dataclasses

from hypothesis import given, strategies
from recorded_traffic import decode, prefill, product, recorded, unknown

from pytest_flashinfer_perf.extensions.traffic import clusters, replay

lengths = strategies.lists(strategies.integers(1, 5000), min_size=1, max_size=4)
counts = strategies.integers(1, 1000)
decoding = strategies.builds(lambda *samples, count: decode(*samples, count=count + 2), lengths, count=counts)
prompts = strategies.lists(strategies.integers(1, 300), min_size=1, max_size=3)
prefilling = strategies.builds(lambda q, count: prefill(q, [2 * one for one in q], count), prompts, counts)
products = strategies.builds(lambda m, count: product(m, count=count), strategies.integers(1, 4096), counts)
traffic = strategies.lists(decoding | prefilling | products, min_size=1, max_size=12)
weights = strategies.floats(0, 10, allow_nan=False)


@given(traffic)
def test_every_call_is_in_one_cluster(calls):
    found = clusters.clustered(replay.translate_all(calls).weighed)
    assert sum(cluster.calls for cluster in found) == sum(call.count for call in calls)
    assert [one.seconds for one in found] == sorted((one.seconds for one in found), reverse=True)
    assert clusters.error(found) <= clusters.MOST_APART
    for cluster in found:
        assert len({one.problem.fixed for one in cluster.members}) == 1


@given(traffic, weights, weights, weights)
def test_the_sum_is_within_its_bound_of_the_sum_of_all_calls(calls, fixed, by_largest, by_all):
    """For a time that grows with sizes, and no faster: any sum of parts that are constant, or those of sizes."""

    def seconds(problem):
        return fixed + by_largest * max(problem.sizes.values()) + by_all * sum(problem.sizes.values())

    found = clusters.clustered(replay.translate_all(calls).weighed)
    of_leaders = sum(one.calls * seconds(one.leader.problem) for one in found)
    members = [(one, cluster.leader) for cluster in found for one in cluster.members]
    of_all = sum(one.calls * seconds(one.problem) for one, _ in members)
    bound = sum(one.calls * seconds(one.problem) * clusters.apart(one.problem, led.problem) for one, led in members)
    assert abs(of_leaders - of_all) <= bound * (1 + 1e-9) + 1e-9


@given(traffic)
def test_by_the_estimate_itself_the_sum_is_as_near_as_the_coverage_says(calls):
    found = clusters.clustered(replay.translate_all(calls).weighed)
    of_leaders = sum(one.calls * one.leader.problem.seconds for one in found)
    of_all = sum(one.seconds for one in found)
    assert abs(of_leaders / of_all - 1) <= clusters.error(found) + 1e-9


def test_alike_lengths_share_a_case_and_others_do_not():
    steps = [decode([1000 + step, 2000 + step], count=10) for step in range(64)]
    found = clusters.clustered(replay.translate_all([*steps, decode([10, 20], count=10)]).weighed)
    assert len(found) < 12
    assert sum(one.calls for one in found) == 650


def test_the_plan_has_weights_and_shares():
    found = replay.of(recorded(), "traffic.jsonl")
    counts = {kernel.cases[0]: kernel.count for kernel in found.plan.kernels if kernel.cases}
    assert sorted(counts.values()) == [40, 60, 100, 200, 200]
    [skipped] = [entry for entry in found.entries if entry.missing]
    assert skipped.missing.startswith("fused_everything, 40.0% of the calls: ")
    first, second, third = found.plan.coverage
    assert first.startswith("traffic.jsonl: 5 cases for 60.0% of the calls, ")
    assert "their sum is within 0." in second
    assert third.strip().startswith("without a case: fused_everything (40.0% of the calls): ")
    nothing = replay.of(recorded([unknown(3)]), "traffic.jsonl")
    assert nothing.plan.coverage[0].startswith("traffic.jsonl: 0 cases for 0.0% of the calls")


def test_equal_calls_are_one_case_and_samples_stand_for_all_calls():
    calls = [decode([9, 17], [9, 17], [8, 17], count=8), decode([9, 17], count=1)]
    weighed = replay.translate_all(calls).weighed
    assert sorted(one.calls for one in weighed) == [2, 7]


def test_a_sample_without_anything_stands_for_nothing():
    """As of calls whose tensors could not be read."""
    call = decode([9, 17], count=10)
    found = replay.translate_all([dataclasses.replace(call, samples=(*call.samples, {}))])
    assert ([one.calls for one in found.weighed], found.without) == ([10], ())
