"""Verdicts, the data behind each, and the exit code of all of them."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pytest_flashinfer_perf.gate.effects import Effect
from pytest_flashinfer_perf.gate.match import NEVER_ALLOWED, ComparedCase
from pytest_flashinfer_perf.gate.thresholds import Broken, StepThresholds, Threshold, Thresholds
from pytest_flashinfer_perf.models.verdicts import JudgedStep
from pytest_flashinfer_perf.rows.run_file import Run

NOTHING_WORSE, WORSE, COULD_NOT_JUDGE = 0, 1, 2  # exit codes; of 1 and 2 it is 1


class Verdict(str, Enum):
    """The verdicts, the most important to a reader first."""

    SLOWER = "SLOWER"
    INVALID = "INVALID"
    MISSING = "MISSING"
    AMBIGUOUS = "AMBIGUOUS"
    FASTER = "FASTER"
    SAME = "SAME"
    NEW = "NEW"  # not in the baseline: listed, and held to absolutes


@dataclass(frozen=True)
class Rules:
    """The settings of a comparison. Paired: the n-th processes of the two sides ran next to each other.

    If `quantity` is given, one of host time, it alone decides every verdict.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    allowed: frozenset[str] = frozenset()
    strict: bool = False
    paired: bool = False
    steps: StepThresholds = field(default_factory=StepThresholds)
    quantity: str | None = None


@dataclass(frozen=True)
class Judged:
    """A case, its verdict with reason code and sentence, and all that led to it.

    `threshold` and `detectable` are logarithms of ratios: the least change that counts, the least slowdown that is
    found 95 times in 100.
    The first of `effects` decided the verdict; those that it is `held_too` come with their thresholds.
    """

    case: ComparedCase
    verdict: Verdict
    reason: str
    sentence: str
    asked: Threshold
    threshold: float | None = None
    effects: tuple[Effect, ...] = ()
    detectable: float | None = None
    broken: tuple[Broken, ...] = ()
    admitted: bool = False
    held_too: tuple[tuple[Effect, float], ...] = ()

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def primary(self) -> Effect | None:
        return self.effects[0] if self.effects else None

    def effect_in(self, domain: str) -> Effect | None:
        return next((effect for effect in self.effects if effect.seen.domain == domain), None)

    @property
    def compared(self) -> bool:
        return bool(self.effects)

    @property
    def worse(self) -> bool:
        breaks = any(not broken.unknown for broken in self.broken)
        return self.verdict is Verdict.SLOWER or self.reason in NEVER_ALLOWED or breaks

    @property
    def unjudged(self) -> bool:
        return self.verdict in (Verdict.MISSING, Verdict.INVALID) and not self.admitted


@dataclass(frozen=True)
class Judgement:
    """The result of a comparison. `failures` are failed tests of the head that belong to no known case."""

    cases: tuple[Judged, ...]
    base: tuple[Run, ...]
    head: tuple[Run, ...]
    rules: Rules
    refusals: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    steps: tuple[JudgedStep, ...] = ()

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(judged.verdict for judged in self.cases)

    @property
    def nothing(self) -> bool:
        return not any(judged.compared for judged in self.cases)

    @property
    def exit_code(self) -> int:
        if self.failures or any(judged.worse for judged in self.cases) or any(step.worse for step in self.steps):
            return WORSE
        undecided = self.rules.strict and self.counts[Verdict.AMBIGUOUS] > 0
        unjudged = any(judged.unjudged for judged in self.cases) or any(step.unknown for step in self.steps)
        return COULD_NOT_JUDGE if self.refusals or self.nothing or unjudged or undecided else NOTHING_WORSE

    def having(self, verdict: Verdict) -> list[Judged]:
        return [judged for judged in self.cases if judged.verdict is verdict]


# The verdict for a change and its noise, and for a suspect that was measured again.

ALIKE = 0.4  # of the first change at least: one by chance is followed by none, and a real one may have been flattered

REMEDY = "run more processes (`flashinfer-perf ab`)"


def decide(of_case: Sequence[Effect], threshold: float) -> tuple[Verdict, str, str]:
    """The first effect is in the domain to judge by."""
    primary, other = of_case[0], of_case[1] if len(of_case) > 1 else None
    for sign, verdict in ((1, Verdict.SLOWER), (-1, Verdict.FASTER)):
        if sign * primary.change > threshold:
            return _changed(primary, other, threshold, sign, verdict)
    if other and other.change > threshold and other.significant == 1:
        return Verdict.AMBIGUOUS, f"{other.seen.domain}-only", _only(other)
    if primary.bound(1) > 2 * threshold:
        return Verdict.AMBIGUOUS, "cannot-see", f"too noisy to exclude a slowdown of twice the threshold: {REMEDY}"
    return Verdict.SAME, "within-threshold", "no change beyond the threshold"


def _changed(
    primary: Effect, other: Effect | None, threshold: float, sign: int, verdict: Verdict
) -> tuple[Verdict, str, str]:
    if primary.significant != sign:
        return Verdict.AMBIGUOUS, "not-significant", f"beyond the threshold, but it may be noise: {REMEDY}"
    if other and sign * other.bound(sign) < threshold:
        return Verdict.AMBIGUOUS, f"{primary.seen.domain}-only", _only(primary)
    return verdict, verdict.value.lower(), f"beyond the threshold in {primary.seen.domain}"


WHY = {
    "time": "the SM clock changed, or it waits for something else than its SMs or memory",
    "cycles": "the SM clock changed, or it waits for memory",
}


def _only(effect: Effect) -> str:
    domain, other = ("time", "cycles") if effect.seen.domain == "time" else ("cycles", "time")
    return f"changed in {domain} and not in {other}: {WHY[domain]}"


def confirm(judgement: Judgement, again: Mapping[str, Sequence[float]], why_not: str = "") -> Judgement:
    """Suspects, with the changes that other processes saw since; `why_not` where there are none of those."""
    cases = tuple(_confirmed(judged, again.get(judged.name, ()), why_not) for judged in judgement.cases)
    return replace(judgement, cases=cases)


def _confirmed(judged: Judged, again: Sequence[float], why_not: str) -> Judged:
    """Whether the second measurement shows a change like the first one."""
    if judged.verdict is not Verdict.SLOWER or judged.threshold is None or judged.primary is None:
        return judged
    if not again:
        return replace(judged, sentence=f"{judged.sentence}; {why_not}") if why_not else judged
    seen = f"measured again: {', '.join(f'{100 * math.expm1(change):+.2f} %' for change in again)}"
    if statistics.fmean(again) >= ALIKE * judged.primary.change:
        return replace(judged, sentence=f"{judged.sentence}; {seen}")
    return replace(judged, verdict=Verdict.AMBIGUOUS, reason="not-confirmed", sentence=f"not confirmed, {seen}")
