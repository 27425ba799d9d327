"""Backends side by side: which are the fastest of each shape, and that in a sentence.

Backends that are not surely slower than the fastest share its place (gate/effects.py).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.api import effects, formatting
from pytest_flashinfer_perf.extensions.reports.story import CaseOutcome

ALONG = {"b": ("batch_size",), "s": ("s_kv", "max_seq_len"), "m": ("m",)}  # the sizes that an answer may be divided at
MOST = 6  # routines of which the answer has a sentence


@dataclass(frozen=True)
class BackendTable:
    """Backends side by side, for shapes of one routine that were measured in one way on one device."""

    title: str
    routine: str
    backends: tuple[str, ...]
    shapes: Mapping[str, Mapping[str, CaseOutcome]]

    def params(self, shape: str) -> Mapping[str, Any]:
        return next((one.row.params for one in self.shapes[shape].values() if one.row), {})

    @functools.cached_property
    def fastest(self) -> Mapping[str, tuple[CaseOutcome, ...]]:
        """The backends that share the first place, for each shape."""
        winners = {}
        for shape, outcomes in self.shapes.items():
            rows = effects.fastest([one.row for one in outcomes.values() if one.row])
            winners[shape] = tuple(one for row in rows for one in outcomes.values() if one.row is row)
        return winners

    @functools.cached_property
    def wins(self) -> Counter[str]:
        """First places, shared ones included."""
        return Counter(one.backend for place in self.fastest.values() for one in place)

    @property
    def sentence(self) -> str:
        return _winners(self)


def comparisons(outcomes: Iterable[CaseOutcome]) -> Iterator[BackendTable]:
    """Comparisons of backends; none for routines of which only one backend was measured."""
    rows = [(one, formatting.provenance(one.row)) for one in outcomes if one.row and one.backend]
    for (_, title), alike in formatting.grouped(rows, lambda pair: (pair[0].place, pair[1])):
        ways = [one for one, _ in alike]
        shapes = {
            shape: {one.backend: one for one in side_by_side}
            for shape, side_by_side in formatting.grouped(ways, lambda one: one.shape)
        }
        backends = tuple(dict.fromkeys(one.backend for one in ways))
        comparison = BackendTable(title, ways[0].routine, backends, shapes)
        if comparison.wins:
            yield comparison


# The fastest backends in a sentence.


def answers(tables: Sequence[BackendTable]) -> list[str]:
    """A sentence for each routine, under the whole title where it was measured in several ways."""
    ways = Counter(table.routine for table in tables)
    shown = [f"{one.routine if ways[one.routine] == 1 else one.title}: {one.sentence}." for one in tables[:MOST]]
    left = len(tables) - len(shown)
    return [*shown, f"{formatting.counted(left, 'more comparison')} of backends below."] if left else shown


def _winners(table: BackendTable) -> str:
    """The backend with the most first places, those that are the fastest elsewhere, and those that tie with it."""
    places = {shape: {one.backend for one in place} for shape, place in table.fastest.items() if place}
    if len(table.wins) > 1 and all(place == set(table.wins) for place in places.values()):
        *some, last = table.wins
        return f"{', '.join(some)} and {last} tie {_where(places, table)}"
    [(first, _), *others] = table.wins.most_common()
    of_first = {shape for shape, place in places.items() if first in place}
    sentences = [f"{first} is the fastest {_where(of_first, table)}"]
    for other, _ in others:
        there = {shape for shape, place in places.items() if other in place}
        sentences += [f"{other} {_where(there - of_first, table)}"] if there - of_first else []
        sentences += [f"{other} ties with it {_where(there & of_first, table)}"] if there & of_first else []
    return ", ".join(sentences)


def _where(shapes: Collection[str], table: BackendTable) -> str:
    """Name these shapes by a size that no other of the table has, or else by their number."""
    won = [shape for shape, place in table.fastest.items() if place]
    if len(shapes) == len(won):
        return {1: "in the only shape", 2: "in both shapes"}.get(len(won), f"in all {len(won)} shapes")
    for letter, names in ALONG.items():
        here, others = (_sizes([s for s in won if (s in shapes) is wanted], names, table) for wanted in (True, False))
        if here and others and min(here) > max(others):
            return f"from {letter}{min(here)} on"
        if here and others and max(here) < min(others):
            return f"up to {letter}{max(here)}"
    return f"in {len(shapes)} of {len(won)} shapes"


def _sizes(shapes: Iterable[str], names: Collection[str], table: BackendTable) -> list[int]:
    all_params = (table.params(shape) for shape in shapes)
    return [params[name] for params in all_params for name in names if name in params]
