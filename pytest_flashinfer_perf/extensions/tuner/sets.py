"""The set of the best tactics, and what any other one costs: regret, with an interval.

Tactics run in rounds, each once in a round at the same addresses, so they are compared by differences within rounds.
The best are all that are not surely slower than another one: multiple comparisons with the best, after Hsu, with
Bonferroni's bound. Noise is the gate's: what the rounds of one pair say, blended with what all pairs say.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pytest_flashinfer_perf.api import effects as core_effects
from pytest_flashinfer_perf.gate import noise
from pytest_flashinfer_perf.gate.noise import Noise

FEWEST_ROUNDS = 2  # a single one says nothing of its noise
MOST_BELIEVED = 4.0  # degrees of freedom: a tactic may be noisier than all others together

Rounds = Mapping[int, float]  # seconds by the number of the round


@dataclass(frozen=True)
class Regret:
    """How much slower than the best tactic, as a share of its time, with its bounds."""

    low: float
    seen: float
    high: float

    @property
    def sentence(self) -> str:
        low, middle, high = (100 * share for share in (self.low, self.seen, self.high))
        return f"+{middle:.1f} % ({low:.1f} to {high:.1f})"


@dataclass(frozen=True)
class Contestants:
    """Tactics that ran, with the seconds of each in its rounds; `out` were dropped as surely slower than others.

    `tick_s` is what the clock rounds by: rounds agree in that, so that more of them do not lessen it.
    """

    times: Mapping[str, Rounds]
    out: frozenset[str] = frozenset()
    tick_s: float = 0.0

    @functools.cached_property
    def fastest(self) -> str:
        """The fastest of what is left, each beside the one that ran in the most rounds: later ones may be slower."""
        beside = self.times[max(self.times, key=lambda name: len(self.times[name]))]

        def behind(name: str) -> float:
            times = self.times[name]
            if shared := times.keys() & beside.keys():
                return statistics.fmean(math.log(times[n] / beside[n]) for n in shared)
            return math.log(statistics.median(times.values()) / statistics.median(beside.values()))

        return min((name for name in self.times if name not in self.out), key=behind)

    @functools.cached_property
    def best(self) -> tuple[str, ...]:
        """All that cannot be told from the fastest, this one first; what ran in another stage was combined into it."""
        left = (name for name in self.times if name not in self.out and name != self.fastest)
        met = (name for name in left if self.times[name].keys() & self.times[self.fastest].keys())
        near = (self.fastest, *(name for name in met if not self.is_slower(name)))
        beaten = {name for name in near[1:] if any(self.is_slower(name, than=other) for other in near)}
        return tuple(name for name in near if name not in beaten)

    def is_slower(self, name: str, looks: int = 1, than: str | None = None) -> bool:
        """Whether it is surely slower than the fastest or another, when all are compared, in each of so many looks."""
        effect = self.effect(than or self.fastest, name)
        return effect is not None and effect.bound(-1, self._risk / looks) > 0

    def regret(self, name: str) -> Regret | None:
        """The regret of a tactic; None where it ran in no rounds with the best."""
        effects = [self.effect(other, name) for other in self.best if other != name]
        comparable = [effect for effect in effects if effect is not None]
        if name == self.fastest and not effects:
            return Regret(0.0, 0.0, 0.0)
        if not comparable:
            return None
        low = 0.0 if name in self.best else max(effect.bound(-1, self._risk) for effect in comparable)
        high = max(effect.bound(1) for effect in comparable)
        middle = max((effect.change for effect in comparable), default=0.0)
        shown = 0.0 if name == self.fastest else middle
        return Regret(*(math.expm1(max(0.0, share)) for share in (low, shown, high)))

    @property
    def _risk(self) -> float:
        """The risk of one pair: half of it is for the set at the end, the other half for what is dropped on the way."""
        return core_effects.RISK / 2 / max(1, len(self.times) - 1)

    def effect(self, before: str, after: str) -> core_effects.Effect | None:
        """Compare `after` with `before` in the rounds that both ran in."""
        replicates = self._replicates(before, after)
        if replicates is None:
            return None
        own = Noise(replicates.variance, replicates.df, "rounds")
        blended = self._pool.blended(own.variance, own.df) if self._pool else own
        between_processes = noise.BETWEEN_PROCESSES_SD["cycles"] ** 2 + (self.tick_s / replicates.before[0]) ** 2
        rounds = len(replicates.before)  # each makes an effect's error less, and not the noise between processes
        return core_effects.Effect(replicates, replace(blended, variance=blended.variance + rounds * between_processes))

    @functools.cached_property
    def _pool(self) -> Noise | None:
        """The noise of all pairs with the fastest together, which is believed no more than a few rounds of a pair."""
        pairs = [self._replicates(self.fastest, name) for name in self.times if name != self.fastest]
        pool = noise.pooled([(one.variance, one.df) for one in pairs if one is not None])
        return pool and replace(pool, df=min(pool.df, MOST_BELIEVED))

    def _replicates(self, before: str, after: str) -> core_effects.Replicates | None:
        shared = sorted(self.times[before].keys() & self.times[after].keys())
        if len(shared) < FEWEST_ROUNDS:
            return None
        sides = [tuple(self.times[name][n] for n in shared) for name in (before, after)]
        return core_effects.Replicates(core_effects.Domain.TIME, "cycles", sides[0], sides[1], paired=True)
