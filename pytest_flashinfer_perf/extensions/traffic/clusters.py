"""Calls that are alike become one case, and the heaviest come first.

The calls of a family differ in sizes alone: in rows, requests, and the tokens of these. One of them, the leader, is
measured for those of which every size is within 5 % of its own. If time grows with sizes, and no faster than they do,
each of them then takes the leader's time up to that ratio; so the error of the weighted sum is at most the mean of the
ratios, weighed by time (`error`).
Where time jumps from one size to the next, as it does at the tiles of a product, the bound is not one.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.extensions.traffic.problem import PosedProblem

MOST_APART = 0.05


@dataclass(frozen=True)
class Weighed:
    """A problem and the calls that posed it; `api` is theirs."""

    api: str
    problem: PosedProblem
    calls: int

    @property
    def seconds(self) -> float:
        """An estimate, of all of them."""
        return self.calls * self.problem.seconds


@dataclass(frozen=True)
class Cluster:
    """Calls that are measured by their leader, the heaviest of them."""

    members: tuple[Weighed, ...]

    @property
    def leader(self) -> Weighed:
        return self.members[0]

    @property
    def calls(self) -> int:
        return sum(one.calls for one in self.members)

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.members)

    @property
    def error(self) -> float:
        """The estimated seconds by which its sum may be off."""
        return sum(one.seconds * apart(one.problem, self.leader.problem) for one in self.members)


def apart(one: PosedProblem, other: PosedProblem) -> float:
    """The largest ratio of two sizes, minus 1; a size of 0 counts as 1."""
    of_one, of_other = one.sizes, other.sizes
    if of_one.keys() != of_other.keys():
        return math.inf
    ratios = (max(1.0, of_one[name]) / max(1.0, of_other[name]) for name in of_one)
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0) - 1


def clustered(calls: Iterable[Weighed]) -> list[Cluster]:
    """The heaviest first."""
    families: defaultdict[tuple[object, ...], list[Weighed]] = defaultdict(list)
    for one in calls:
        key: tuple[object, ...] = (one.api, *one.problem.fixed)
        families[key].append(one)
    clusters = (cluster for family in families.values() for cluster in _led(family))
    return sorted(clusters, key=lambda cluster: -cluster.seconds)


def _led(family: Sequence[Weighed]) -> Iterator[Cluster]:
    left = sorted(family, key=lambda one: -one.seconds)
    while left:
        near = [apart(one.problem, left[0].problem) <= MOST_APART for one in left]
        yield Cluster(tuple(itertools.compress(left, near)))
        left = [one for one, is_near in zip(left, near, strict=True) if not is_near]


def error(clusters: Sequence[Cluster]) -> float:
    """The share by which the sum may be off, because leaders are measured instead of all calls."""
    whole = sum(cluster.seconds for cluster in clusters)
    return sum(cluster.error for cluster in clusters) / whole if whole else 0.0
