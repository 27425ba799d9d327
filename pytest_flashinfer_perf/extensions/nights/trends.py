"""What many runs say of each GPU: the trend of each case, where its level changed, and what changed with it.

Cards of one model have one page, and a case one trend over all of them. Its levels are those of each card by itself:
another card is 2-3 % apart, which is no change of a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pytest_flashinfer_perf.api import effects, series, words
from pytest_flashinfer_perf.extensions.nights.levels import ENOUGH, Change, Floats, Levels
from pytest_flashinfer_perf.extensions.nights.record import Night, RunEnvironment, WatchedCase

NEAR = 1  # nights by which a change may be found too early or too late
STILL_THERE = 0.5  # of a threshold: a change is gone when less than that is left of it
NEWEST = 20  # runs, in one of which a case failed that may be failing still
DF = 0.37  # degrees of freedom of a median of deviations, for each of a standard deviation


@dataclass(frozen=True)
class Stretch:
    """The figures of one case on one card, and the nights of the page that they are of."""

    case: int
    card: str | None
    at: npt.NDArray[np.intp]
    values: Floats
    levels: Levels

    @property
    def earliest(self) -> float:
        return float(np.median(self.values[: self.levels.bounds[1]]))

    @property
    def latest(self) -> float:
        return float(np.median(self.values[self.levels.bounds[-2] :]))


@dataclass(frozen=True)
class Found:
    """A change of level, and how sure it is."""

    page: GpuPage
    stretch: Stretch
    change: Change
    effect: effects.Effect

    @property
    def least(self) -> float:
        return self.page.least[self.stretch.case]

    @property
    def case(self) -> WatchedCase:
        return self.page.cases[self.stretch.case]

    @property
    def domain(self) -> str:
        return self.page.domains[self.stretch.case]

    @property
    def is_slower(self) -> bool:
        return self.size > 0

    @property
    def sign(self) -> int:
        return 1 if self.is_slower else -1

    @property
    def size(self) -> float:
        return self.change.after - self.change.before

    @property
    def verdict(self) -> str:
        return "SLOWER" if self.is_slower else "FASTER"

    @property
    def detectable(self) -> float:
        return self.effect.detectable(self.least, len(self.page.cases))

    @property
    def since(self) -> int:
        return int(self.stretch.at[self.change.at])

    @property
    def until(self) -> int:
        return int(self.stretch.at[self.change.until])

    @property
    def last_before(self) -> int:
        return int(self.stretch.at[self.change.at - 1])

    @property
    def is_sure(self) -> bool:
        """Noise might show in any case, from any night to any other: so many looks a page has."""
        return series.is_sure(self.effect, self.sign, self.page.points * len(self.page.nights))

    @property
    def now(self) -> float:
        """The latest level over the one before the change, as a logarithm; without what another card is apart."""
        return self.page.latest(self.stretch) - self.change.before

    @property
    def is_gone(self) -> bool:
        return self.sign * self.now < STILL_THERE * self.least

    @property
    def around(self) -> tuple[int, int]:
        """Nights that surely lie before and after it, as far as there are such."""
        before, after = self.change.at - 1 - NEAR, self.change.until + NEAR
        at = self.stretch.at
        return int(at[max(self.change.first, before)]), int(at[min(self.change.last - 1, after)])

    @property
    def kernels(self) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        before, after = (self.page.kernels_of(self.stretch.case, night) for night in self.around)
        return before, after

    def beside(self) -> Iterator[str]:
        """What else changed with it: libraries, driver, kernels, the clock."""
        before, after = self.around
        yield from self.page.changed(before, after).values()
        gone, come = self.kernels
        if gone != come and gone is not None and come is not None:
            yield words.another_kernel(gone, come)
        was, now = (self._clock(*part) for part in self._parts)
        if was and now:
            yield from words.clock_moved(was, now)

    @property
    def _parts(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (self.change.first, self.change.at), (self.change.until, self.change.last)

    def _clock(self, start: int, end: int) -> float:
        seen = self.page.ghz[self.stretch.at[start:end], self.stretch.case]
        known = seen[~np.isnan(seen)]
        return float(np.median(known)) if len(known) else 0.0


@dataclass(eq=False)
class GpuPage:
    """All runs of one model of GPU, in the order of their times; tables have a line per night, a column per case."""

    gpu: str
    nights: list[Night]
    cards: list[RunEnvironment]
    cases: list[WatchedCase]
    values: Floats
    domains: list[str]
    us: Floats
    ghz: npt.NDArray[np.float32]
    kernels: npt.NDArray[np.int32]
    names: Sequence[tuple[str, ...]]
    least: list[float]
    stretches: list[Stretch] = field(default_factory=list)

    def kernels_of(self, case: int, night: int) -> tuple[str, ...] | None:
        known = int(self.kernels[night, case])
        return None if known < 0 else self.names[known]

    def changed(self, before: int, after: int) -> dict[str, str]:
        """Which software differs between two nights, by its name."""
        was, now = self.cards[before], self.cards[after]
        lacked, lacks = (", ".join(card.unmet) or "nothing" for card in (was, now))
        sides = [*_sides(was.software, now.software), *_sides(was.switches, now.switches)]
        sides.append(("what FlashInfer lacks", lacked, lacks))
        return {name: f"{name} {old} -> {new}" for name, old, new in sides if old != new and name != "gpu"}

    def when(self, night: int) -> str:
        return f"{self.nights[night].when:%Y-%m-%d %H:%M}"

    @cached_property
    def failing(self) -> dict[str, str]:
        """What failed in one of the newest runs and was measured by none since: several hosts may take part."""
        still: dict[str, str] = {}
        for nth in range(max(0, len(self.nights) - NEWEST), len(self.nights)):
            for case in np.flatnonzero(self.has[nth]).tolist():
                still.pop(self.cases[case].name, None)
            still |= self.nights[nth].failed
        return still

    @cached_property
    def gone(self) -> list[str]:
        """What the newest run lacks of the run before it: of the same card, and with a case in common."""
        before = [nth for nth, card in enumerate(self.cards[:-1]) if card.card == self.cards[-1].card]
        alike = (self.has[nth] for nth in reversed(before) if (self.has[nth] & self.has[-1]).any())
        lacks = np.flatnonzero(next(alike, self.has[-1]) & ~self.has[-1])
        return [name for case in lacks if (name := self.cases[case].name) not in self.failing]

    @property
    def is_short(self) -> bool:
        """Whether no case has been measured often enough for a change to be told."""
        return all(len(one.at) < ENOUGH for one in self.stretches)

    @cached_property
    def has(self) -> npt.NDArray[np.bool_]:
        return ~np.isnan(self.us)

    @cached_property
    def points(self) -> int:
        return int((~np.isnan(self.values)).sum())

    def latest(self, stretch: Stretch) -> float:
        """The latest level; of a card that is gone as if it were still there, from what changed on those since."""
        later = (one for one in self._stretches_by_case[stretch.case] if one.at[0] > stretch.at[-1])
        return stretch.latest + sum(one.latest - one.earliest for one in later)

    @cached_property
    def _stretches_by_case(self) -> dict[int, list[Stretch]]:
        made: dict[int, list[Stretch]] = {}
        for one in self.stretches:
            made.setdefault(one.case, []).append(one)
        return made

    @cached_property
    def found(self) -> list[Found]:
        """The changes in the order of their nights, sure or not."""
        seen = [_found(self, one, change) for one in self.stretches for change in one.levels.found]
        return sorted(seen, key=lambda one: one.since)

    @cached_property
    def sure(self) -> list[Found]:
        return [one for one in self.found if one.is_sure]

    @cached_property
    def there(self) -> list[Found]:
        """Those that are sure, and still there."""
        return [one for one in self.sure if not one.is_gone]


def _sides(was: Mapping[str, str | None], now: Mapping[str, str | None]) -> Iterator[tuple[str, str, str]]:
    for name in dict.fromkeys((*was, *now)):
        yield name, was.get(name) or "none", now.get(name) or "none"


def _found(page: GpuPage, stretch: Stretch, change: Change) -> Found:
    """With the noise between neighbours, or the larger one around both levels, where neighbours are alike."""
    values = np.exp(stretch.levels.calm)
    before, after = values[change.first : change.at], values[change.until : change.last]
    domain = page.domains[stretch.case]
    how = {"sd": stretch.levels.sd, "alike": stretch.levels.alike, "df": max(1.0, DF * (len(values) - 1))}
    return Found(page, stretch, change, series.between(domain, before.tolist(), after.tolist(), **how))
