"""Compare host time, separately from GPU time: it can grow while the GPU takes as long as before.

They decide the verdict of a case only where `slower_host` is asked of it, or where the rules judge by one of them
alone, and are shown beside its time in any case.
The fastest call is compared in units of the fastest reference: other calls take up to twice as long for reasons of the
machine's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_flashinfer_perf.gate import effects, noise
from pytest_flashinfer_perf.gate.effects import Effect, Replicates
from pytest_flashinfer_perf.gate.match import ComparedCase
from pytest_flashinfer_perf.gate.verdict import Judged, Verdict, decide
from pytest_flashinfer_perf.rows.row import COUNTED, HostTime, Row, places

QUANTITIES = {"host": "the time to enqueue it", "plan": "the time to plan it"}
ALONE = 0.1  # the share that counts where one is judged alone and `slower_host` is not set
ORDER = list(Verdict)


def judged(sound: Sequence[Judged], *, paired: bool) -> dict[str, Judged]:
    """The host-time effects of all cases whose rows have them; each quantity is a family of tests."""
    found: dict[str, list[Effect]] = {}
    for quantity in QUANTITIES:
        known = {one.name: seen for one in sound if (seen := _of_case(one.case, quantity, paired=paired))}
        expected = replace(noise.assumed(quantity), source="other hosts")  # quiet cases say little of one that is not
        made = effects.marked(effects.effects(list(known.values()), expected))
        for name, effect in zip(known, made, strict=True):
            found.setdefault(name, []).append(effect)
    return {one.name: _with(one, found[one.name], len(found)) for one in sound if one.name in found}


def _of_case(case: ComparedCase, quantity: str, *, paired: bool) -> Replicates | None:
    return replicates(quantity, case.before, case.after, paired=paired)


def replicates(quantity: str, before: Sequence[Row], after: Sequence[Row], *, paired: bool) -> Replicates | None:
    """In seconds of a core of one speed; None where a row lacks them."""
    seen = (_seconds(row.host, quantity) for row in (*before, *after))
    figures = tuple(figure for figure in seen if figure)
    if len(figures) < len(before) + len(after):
        return None
    return Replicates(quantity, quantity, figures[: len(before)], figures[len(before) :], paired)


def _seconds(host: HostTime | None, quantity: str) -> float | None:
    us = host and (host.comparable_us if quantity == "host" else host.comparable_plan_us)
    return 1e-6 * us if us else None


def _with(judged: Judged, found: Sequence[Effect], cases: int) -> Judged:
    if judged.asked.slower_host is None:
        return replace(judged, effects=(*judged.effects, *found))
    threshold = math.log1p(judged.asked.slower_host)
    for effect in found:
        judged = _held_to(threshold, judged, effect, cases)
    return judged


def _held_to(threshold: float, judged: Judged, effect: Effect, cases: int) -> Judged:
    """The verdict that people want to read first is the case's, whichever quantity it is of."""
    decided = _by(threshold, judged, effect, cases)
    others = (*judged.held_too, (effect, threshold))
    if ORDER.index(decided.verdict) >= ORDER.index(judged.verdict):
        return replace(judged, effects=(*judged.effects, effect), held_too=others)
    return replace(decided, held_too=others)


def alone(judged: Judged, quantity: str, cases: int) -> Judged:
    """The case judged by this quantity, whatever became of the others."""
    effect = judged.effect_in(quantity)
    if effect is None:
        sentence = f"{QUANTITIES[quantity]} is not written for each of its rows"
        return replace(
            judged, verdict=Verdict.INVALID, reason="no-figure", sentence=sentence, effects=(), threshold=None
        )
    others = tuple(one for one in judged.effects if one is not effect)
    asked = judged.asked.slower_host
    threshold = math.log1p(ALONE if asked is None else asked)
    return _by(threshold, replace(judged, effects=others, held_too=()), effect, cases)


def _by(threshold: float, judged: Judged, effect: Effect, cases: int) -> Judged:
    verdict, reason, sentence = decide([effect], threshold)
    is_changed = verdict in (Verdict.SLOWER, Verdict.FASTER)
    return replace(
        judged,
        verdict=verdict,
        reason=f"{reason}-{effect.seen.domain}" if is_changed else reason,
        sentence=_sentence(judged, verdict, sentence, effect),
        threshold=threshold,
        effects=(effect, *judged.effects),
        detectable=effect.detectable(threshold, cases),
    )


def _sentence(judged: Judged, verdict: Verdict, sentence: str, effect: Effect) -> str:
    what = QUANTITIES[effect.seen.domain]
    if verdict in (Verdict.AMBIGUOUS, Verdict.SAME):
        return f"{what}: {sentence}"
    there = " on the host alone" if judged.verdict in (Verdict.SAME, Verdict.FASTER) else ""
    return f"{verdict.value.lower()}{there}: {what} changed by more than slower_host"


def remarks(case: ComparedCase) -> Iterator[str]:
    """Allocations, synchronisations and copies that became more, with the lines of Python that cause them."""
    before, after = ([row.host for row in side if row.host] for side in (case.before, case.after))
    for what, field in COUNTED.items():
        was, now = ([count for host in side if (count := getattr(host, field)) is not None] for side in (before, after))
        if was and now and min(now) > max(was):
            yield f"{field} of a call {max(was)} -> {min(now)}: {', '.join(places(after[-1], what))}"
