"""The verdict for a change and its noise, and for a suspect that was measured again."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_flashinfer_perf.gate.effects import Effect
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Verdict

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
