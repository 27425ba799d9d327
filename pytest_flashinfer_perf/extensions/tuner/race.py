"""Time many tactics in rounds, interleaved, within a budget: those that are surely slower leave the race early.

A tactic is dropped only if it is surely slower than the fastest, at a risk that is shared by all looks and all tactics,
so the best one stays with the confidence of the report. What has to be known in any case is never dropped.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_flashinfer_perf.api import FlashinferPerfError
from pytest_flashinfer_perf.extensions.tuner.sets import Contestants

FIRST_LOOK, MOST_ROUNDS = 2, 24
ENOUGH = 0.005  # all that is left and all that is asked for are known this well: another round changes nothing
BUDGET_IS_UP = "the budget was up before its turn"


class UnfitError(FlashinferPerfError):
    """A tactic cannot take part: its answer is wrong, or it fails to run. `kind` is its state in the report."""

    def __init__(self, kind: Literal["wrong", "fails"], reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass
class Lane:
    """A tactic in a race: its seconds by round, its state once it is out of the race, and why it is."""

    name: str
    times: dict[int, float] = field(default_factory=dict)
    state: Literal["", "slower", "wrong", "fails", "untimed"] = ""
    why: str = ""


Timed = Callable[[str], float]


@dataclass
class Race:
    """Lanes by name, over one or several stages of a search. `kept` stay to the end, whatever they cost."""

    kept: Collection[str]
    rounds: Iterator[Timed]
    tick_s: float = 0.0
    lanes: dict[str, Lane] = field(default_factory=dict)
    round: int = 0
    order: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311 - only an order

    def run(self, names: Sequence[str], left: Callable[[], float]) -> Contestants:
        """Race these and the kept ones until enough is known, or until no seconds are `left`.

        One round says nothing of its noise. So what has a turn in the first one has another, for which time is kept.
        """
        for name in (*names, *self.kept):
            self.lanes.setdefault(name, Lane(name))
        by_turn = dict.fromkeys((*self.kept, *names))
        running = [name for name in by_turn if self.lanes[name].state in ("", "slower")]
        for nth in range(1, MOST_ROUNDS + 1):
            running = self._one_round(running, left)
            if nth >= FIRST_LOOK and (self._is_enough(running := self._look(running)) or left() <= 0):
                break
        return self.field

    def _one_round(self, running: list[str], left: Callable[[], float]) -> list[str]:
        """Time each once, in a new order, so that no tactic always follows the same one."""
        self.round += 1
        timed, fit, half = next(self.rounds), [], left() / 2
        for name in self.order.sample(running, len(running)):
            lane = self.lanes[name]
            if left() <= half and not lane.times and name not in self.kept:
                lane.state, lane.why = "untimed", BUDGET_IS_UP
                continue
            try:
                lane.times[self.round] = timed(name)
                fit.append(name)
            except UnfitError as error:
                fit += self._back_again() if lane.times else []
                lane.state, lane.why, lane.times = error.kind, str(error), {}
        return list(dict.fromkeys(fit))

    def _back_again(self) -> list[str]:
        """The tactics that left as slower than one that is out of the race itself now."""
        left = {name: lane for name, lane in self.lanes.items() if lane.state == "slower"}
        for lane in left.values():
            lane.state, lane.why = "", ""
        return list(left)

    def _look(self, running: list[str]) -> list[str]:
        """Drop what is surely slower than the fastest of those that run."""
        if len(running) < 2:
            return running
        field = self._field(running)
        for name in running:
            if name not in self.kept and field.is_slower(name, looks=MOST_ROUNDS):
                lane = self.lanes[name]
                slower = field.effect(field.fastest, name)
                share = f"{100 * slower.change:.1f} %" if slower else "surely"
                lane.state, lane.why = "slower", f"dropped after {len(lane.times)} rounds: {share} behind"
        return [name for name in running if not self.lanes[name].state or name in self.kept]

    def _is_enough(self, running: Sequence[str]) -> bool:
        """Whether what is left can be told apart or hardly differs, and what is asked for is known well enough."""
        if len(running) < 2:
            return True
        field = self._field(running)
        regrets = map(field.regret, running)  # until one of them is not known well enough
        return all(one is not None and (one.high - one.low) / (1 + one.seen) <= 2 * ENOUGH for one in regrets)

    def _field(self, names: Sequence[str]) -> Contestants:
        return Contestants({name: self.lanes[name].times for name in names}, tick_s=self.tick_s)

    @property
    def field(self) -> Contestants:
        """The times of all that ran, with what was dropped."""
        ran = [name for name, lane in self.lanes.items() if lane.times]
        out = frozenset(name for name in ran if self.lanes[name].state == "slower")
        return Contestants({name: self.lanes[name].times for name in ran}, out, self.tick_s)
