"""The decision about one change: its threshold and its noise make a verdict, whichever quantity changed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from pytest_flashinfer_perf.gate.effects import Domain, Effect
from pytest_flashinfer_perf.gate.match import Reason
from pytest_flashinfer_perf.gate.verdict import Judged, Verdict
from pytest_flashinfer_perf.rows.formatting import duration

REMEDY = "run more processes (`flashinfer-perf ab`)"

Decision = tuple[Verdict, str, str]  # with the reason's code and its sentence


def decide(of_case: Sequence[Effect], threshold: float, obstacle: tuple[Reason, str] | None = None) -> Decision:
    """The verdict for a change and its noise; the first effect is in the domain to judge by.

    It is AMBIGUOUS where an obstacle keeps these rows from deciding it, whatever they show.
    """
    if obstacle:
        return (Verdict.AMBIGUOUS, *obstacle)
    primary, other = of_case[0], of_case[1] if len(of_case) > 1 else None
    for sign, verdict in ((1, Verdict.SLOWER), (-1, Verdict.FASTER)):
        if sign * primary.change > threshold:
            return _changed(primary, other, threshold, sign, verdict)
    if other and other.change > threshold and other.significant == 1:
        return _only(other)
    if primary.bound(1) > 2 * threshold:
        sentence = f"too noisy to exclude a slowdown of twice the threshold: {REMEDY}"
        return Verdict.AMBIGUOUS, Reason.CANNOT_SEE, sentence
    return Verdict.SAME, Reason.WITHIN_THRESHOLD, "no change beyond the threshold"


def _changed(primary: Effect, other: Effect | None, threshold: float, sign: int, verdict: Verdict) -> Decision:
    if primary.significant != sign:
        return Verdict.AMBIGUOUS, Reason.NOT_SIGNIFICANT, f"beyond the threshold, but it may be noise: {REMEDY}"
    levels = two_speeds(primary.replicates.before, primary.replicates.after)
    if levels:
        speeds = speeds_sentence(primary.replicates.domain, levels)
        return Verdict.AMBIGUOUS, Reason.TWO_SPEEDS, f"{speeds}, and processes of one side have both"
    if other and sign * other.bound(sign) < threshold:
        return _only(primary)
    return verdict, Reason(verdict.value.lower()), f"beyond the threshold in {primary.replicates.domain}"


def _only(effect: Effect) -> Decision:
    """Decide on a change in one domain that the other does not show."""
    if effect.replicates.domain == Domain.CYCLES:
        why = "cycles and not in time: the SM clock changed, or it waits for memory"
        return Verdict.AMBIGUOUS, Reason.CYCLES_ONLY, f"changed in {why}"
    why = "time and not in cycles: the SM clock changed, or it waits for something else than its SMs or memory"
    return Verdict.AMBIGUOUS, Reason.TIME_ONLY, f"changed in {why}"


def with_decision(
    judged: Judged, decision: Decision, of_case: tuple[Effect, ...], threshold: float, cases: int
) -> Judged:
    """Record the decision in the case, whose family of tests has so many `cases`."""
    verdict, reason, sentence = decision
    return replace(
        judged,
        verdict=verdict,
        reason=reason,
        sentence=sentence,
        threshold=threshold,
        effects=of_case,
        detectable=of_case[0].detectable(threshold, cases),
    )


# Two speeds of the same code: a CPU's product of matrices may take half as long again in one process of seven, for all
# its calls. Where the processes of both sides together lie on two levels, each of them narrow, and those of one side on
# both, the code explains neither.

APART = 3.0  # how far levels lie from each other, in widths of the wider one


def two_speeds(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """Give the lower and the higher level, if there are two and one side has processes on both."""
    sides = [list(map(math.log, side)) for side in (before, after)]
    every = sorted(value for side in sides for value in side)
    gap, last = max((high - low, low) for low, high in pairwise(every))
    lower, higher = [one for one in every if one <= last], [one for one in every if one > last]
    is_on_both = any(min(side) <= last < max(side) for side in sides)
    if not is_on_both or gap < APART * max(level[-1] - level[0] for level in (lower, higher)):
        return None
    return math.exp(statistics.fmean(lower)), math.exp(statistics.fmean(higher))


def speeds_sentence(domain: str, levels: tuple[float, float]) -> str:
    low, high = (f"{level:,.0f} cycles" if domain == Domain.CYCLES else duration(level) for level in levels)
    return f"two speeds: {low} and {high}"
