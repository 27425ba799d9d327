"""What an extension has cases judged by beside the time of their kernels: a quantity, of which a row has figures.

A quantity is a family of tests as the kernels' time is, with a threshold of its own. It is shown beside a case's time
in any case, and decides only where its threshold is set, or the rules judge by one of its figures alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_flashinfer_perf.gate import effects, loaded_machine
from pytest_flashinfer_perf.gate.decision import decide, with_decision
from pytest_flashinfer_perf.gate.effects import Effect, Replicates
from pytest_flashinfer_perf.gate.match import ComparedCase, Reason
from pytest_flashinfer_perf.gate.noise import ASSUMED_DF, Noise
from pytest_flashinfer_perf.gate.thresholds import Broken
from pytest_flashinfer_perf.gate.verdict import CHANGED, Judged, Rules, Verdict
from pytest_flashinfer_perf.machine.load import Contention
from pytest_flashinfer_perf.rows.row import Row

ALONE = 0.1  # the share that counts where a figure is judged alone and its threshold is not set


@dataclass(frozen=True)
class OtherTime:
    """A figure of a row, in seconds, beside the time of its kernels: its name in changes and reasons, and in sentences.

    `noise` is the standard deviation between processes of one build, as a share, on the noisiest machine known.
    """

    name: str
    what: str
    of: Callable[[Row], float | None]
    noise: float

    def replicates(self, before: Sequence[Row], after: Sequence[Row], *, paired: bool) -> Replicates | None:
        """The figure in both sides' rows; None where a row lacks it."""
        both = (*before, *after)
        values = tuple(value for row in both if (value := self.of(row)))
        if len(values) < len(both):
            return None
        return Replicates(self.name, self.name, values[: len(before)], values[len(before) :], paired)

    def effects(self, sound: Sequence[Judged], *, paired: bool) -> dict[str, Effect]:
        """Give the effect on each case whose rows have the figure; cases differ, so each has the expected noise."""
        of_cases = {one.name: self.replicates(one.case.before, one.case.after, paired=paired) for one in sound}
        measured = {name: one for name, one in of_cases.items() if one}
        expected = Noise(self.noise**2, ASSUMED_DF, "other machines")
        results = effects.with_significance(effects.effects(list(measured.values()), expected))
        return dict(zip(measured, results, strict=True))


@dataclass(frozen=True)
class Quantity:
    """Figures that are held to one threshold, the field `slower` of `limits`.

    `limits` is a dataclass whose fields are limits in `[thresholds]`, each annotated with what reads it. `contention`
    says what else ran while the figures were measured, `broken` which limits a case does not keep, and `remarks` what
    else of them changed with a case. Without figures only the limits are read, for a command to judge by.
    """

    limits: type
    slower: str = ""
    where: str = ""  # a case is slower by these figures alone, as `on the host`
    figures: tuple[OtherTime, ...] = ()
    contention: Callable[[Row], Contention | None] = loaded_machine.contention_of_calls
    broken: Callable[[ComparedCase, Any], Iterable[Broken]] = lambda _case, _limits: ()
    remarks: Callable[[ComparedCase], Iterable[str]] = lambda _case: ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(figure.name for figure in self.figures)

    def judged(self, sound: Sequence[Judged], rules: Rules) -> dict[str, Judged]:
        """Judge the cases whose rows have a figure, by each in turn."""
        by_figure = {figure: figure.effects(sound, paired=rules.paired) for figure in self.figures}
        cases = len({name for of_figure in by_figure.values() for name in of_figure})
        judged = {one.name: replace(one, remarks=(*one.remarks, *self.remarks(one.case))) for one in sound}
        for figure, of_figure in by_figure.items():
            judged |= {name: self._judge(judged[name], figure, effect, cases) for name, effect in of_figure.items()}
        return judged

    def _judge(self, judged: Judged, figure: OtherTime, effect: Effect, cases: int) -> Judged:
        """Judge a case by this figure; the case keeps the verdict that people want to read first."""
        limit = judged.limits.others.get(self.slower)
        shown = replace(judged, effects=(*judged.effects, effect))
        if limit is None:
            return shown
        threshold = math.log1p(limit)
        by_figure = self._decide(judged, figure, effect, threshold, cases)
        first = by_figure.verdict.rank < judged.verdict.rank
        return replace(by_figure if first else shown, other_thresholds=(*judged.other_thresholds, (effect, threshold)))

    def alone(self, judged: Judged, name: str, cases: int) -> Judged:
        """The case judged by the figure of this name, whatever became of the others."""
        figure = next(figure for figure in self.figures if figure.name == name)
        effect = judged.effect_in(name)
        if effect is None:
            sentence = f"{figure.what} is not written for each of its rows"
            invalid = replace(judged, verdict=Verdict.INVALID, reason=Reason.NO_FIGURE, sentence=sentence)
            return replace(invalid, effects=(), threshold=None)
        others = tuple(one for one in judged.effects if one is not effect)
        threshold = math.log1p(judged.limits.others.get(self.slower, ALONE))
        return self._decide(replace(judged, effects=others, other_thresholds=()), figure, effect, threshold, cases)

    def _decide(self, judged: Judged, figure: OtherTime, effect: Effect, threshold: float, cases: int) -> Judged:
        verdict, reason, sentence = decide(
            [effect], threshold, loaded_machine.load_reason(judged.case, self.contention)
        )
        if verdict in CHANGED:
            there = f" {self.where} alone" if judged.verdict in (Verdict.SAME, Verdict.FASTER) else ""
            reason = f"{reason}-{figure.name}"
            sentence = f"{verdict.value.lower()}{there}: {figure.what} changed by more than {self.slower}"
        else:
            sentence = f"{figure.what}: {sentence}"
        return with_decision(judged, (verdict, reason, sentence), (effect, *judged.effects), threshold, cases)
