"""Confirm what is called SLOWER by processes that measure it again: each of them has to show the change.

Two do. Where one of them shows it and the other does not, two more are measured. The case stays SLOWER if three of the
four show it, unless its processes have two speeds: then the code explains neither.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.decision import speeds_sentence, two_speeds
from pytest_flashinfer_perf.gate.match import Reason
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Verdict

FEWEST, MOST = 2, 4  # processes that measure it again: at first, and where these disagree
# A re-measured change must reach this share of the first one: chance does not repeat, but may have enlarged a real one.
CONFIRM_SHARE = 0.4
CONFIRM_MAJORITY = 0.75  # of the processes must show the change, where they disagree


@dataclass(frozen=True)
class Remeasured:
    """The changes that other processes showed; `load` says how others used the machine during one of them."""

    changes: tuple[float, ...] = ()
    load: str = ""


Measure = Callable[[int, Sequence[Judged]], Judgement]  # what the n-th process shows of these suspects


def remeasure(suspects: Sequence[Judged], measure: Measure) -> dict[str, Remeasured | None]:
    """Measure suspects in more processes; None for one of which a process has no figure, and which is dropped."""
    again: dict[str, Remeasured | None] = {suspect.name: Remeasured() for suspect in suspects}
    for nth in range(MOST):
        wanted = [suspect for suspect in suspects if nth < processes(suspect, again[suspect.name])]
        shown = {judged.name: judged for judged in measure(nth, wanted).cases} if wanted else {}
        again |= {one.name: _with(one, again[one.name] or Remeasured(), shown.get(one.name)) for one in wanted}
    return again


def processes(suspect: Judged, again: Remeasured | None) -> int:
    """Decide how many processes measure this suspect again, by what those so far show."""
    if again is None:
        return 0
    return MOST if len(set(_shows(suspect, again))) > 1 else FEWEST


def _with(suspect: Judged, again: Remeasured, judged: Judged | None) -> Remeasured | None:
    """Add what one more process shows, which is nothing where others used the machine."""
    if judged and judged.reason is Reason.LOADED:
        return replace(again, load=judged.sentence)
    effect = judged.effect_in(suspect.effects[0].replicates.domain) if judged else None
    return replace(again, changes=(*again.changes, effect.change)) if effect else None


def _shows(suspect: Judged, again: Remeasured) -> list[bool]:
    least = CONFIRM_SHARE * suspect.effects[0].change
    return [change >= least for change in again.changes]


def confirm(judgement: Judgement, again: Mapping[str, Remeasured | None], why_not: str = "") -> Judgement:
    """Confirm or refute suspects by their new measurements; `why_not` says why there are none."""
    cases = tuple(_confirmed(judged, again.get(judged.name), why_not) for judged in judgement.cases)
    return replace(judgement, cases=cases)


def _confirmed(judged: Judged, since: Remeasured | None, why_not: str) -> Judged:
    again = since or Remeasured()
    if judged.verdict is not Verdict.SLOWER or not judged.effects:
        return judged
    if not again.changes and again.load:
        return _refuted(judged, Reason.LOADED, f"not confirmed, measured again while {again.load}")
    if not again.changes:
        return replace(judged, sentence=f"{judged.sentence}; {why_not}") if why_not else judged
    shown = f"measured again: {', '.join(map(words.percent, again.changes))}"
    shows = _shows(judged, again)
    levels = _speeds(judged, again) if len(set(shows)) > 1 else None
    if levels:
        return _refuted(judged, Reason.TWO_SPEEDS, f"not confirmed, {levels}; {shown}")
    if statistics.fmean(shows) < CONFIRM_MAJORITY:
        return _refuted(judged, Reason.NOT_CONFIRMED, f"not confirmed, {shown}")
    return replace(judged, sentence=f"{judged.sentence}; {shown}")


def _refuted(judged: Judged, reason: Reason, sentence: str) -> Judged:
    return replace(judged, verdict=Verdict.AMBIGUOUS, reason=reason, sentence=sentence)


def _speeds(judged: Judged, again: Remeasured) -> str:
    """Describe two speeds; empty where there are none. Those of pairs were looked for in `judge.py`."""
    [primary, *_] = judged.effects
    if primary.replicates.paired:
        return ""
    before, after = primary.replicates.before, primary.replicates.after
    usual = statistics.geometric_mean(before)
    levels = two_speeds(before, (*after, *(usual * math.exp(change) for change in again.changes)))
    return speeds_sentence(primary.replicates.domain, levels) if levels else ""
