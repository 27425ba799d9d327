"""Compare a run with a baseline, and give each case a verdict."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_flashinfer_perf.gate import effects, host, match, noise, thresholds
from pytest_flashinfer_perf.gate.effects import Effect
from pytest_flashinfer_perf.gate.match import NEVER_ALLOWED, ComparedCase, Trouble
from pytest_flashinfer_perf.gate.thresholds import Threshold
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Rules, Verdict, decide
from pytest_flashinfer_perf.models import budget, verdicts
from pytest_flashinfer_perf.models.verdicts import JudgedStep, TimedCase
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run


def judge(base: Sequence[Run], head: Sequence[Run], rules: Rules) -> Judgement:
    cases = match.cases(base, head, paired=rules.paired)
    judged = {case.name: _screened(case, base, head, rules) for case in cases}
    sound = [one.case for one in judged.values() if one.verdict is Verdict.SAME]
    for name, of_case in _effects(sound, paired=rules.paired).items():
        judged[name] = _decided(judged[name], of_case, rules.allowed, len(sound))
    judged |= host.judged([judged[case.name] for case in sound], paired=rules.paired)
    if rules.quantity:
        judged |= {case.name: host.alone(judged[case.name], rules.quantity, len(sound)) for case in sound}
    order = list(Verdict)
    ranked = sorted(judged.values(), key=lambda one: (order.index(one.verdict), -_size(one)))
    sums = tuple(_steps(ranked, head, rules))
    return Judgement(tuple(ranked), tuple(base), tuple(head), rules, steps=sums)


def _steps(cases: Sequence[Judged], head: Sequence[Run], rules: Rules) -> Iterator[JudgedStep]:
    """The sum of each model's step of which this run has one, from the times of its cases."""
    timed: dict[budget.ProblemKey, list[TimedCase]] = defaultdict(list)
    for one in cases:
        for row in one.case.rows[:1]:
            seconds = (_seconds(one.case.before), _seconds(one.case.after))
            timed[budget.key_of(row.params)].append(TimedCase(*seconds, _unsure(one)))
    for plan in {run.step.name: run.step for run in head if run.step is not None}.values():
        yield verdicts.judged(plan, timed, rules.steps.of(plan.name))


def _seconds(rows: Sequence[Row]) -> float | None:
    """The median over processes, of answers that are right."""
    medians = [row.median for row in rows if row.status in budget.USABLE]
    return statistics.median(medians) if medians else None


def _unsure(one: Judged) -> float | None:
    """How far its time may be off, as a share; None of a case that is not compared."""
    effect = one.effect_in("time")
    return None if effect is None else noise.beyond(effects.RISK, effect.noise.df) * effect.error


def _size(judged: Judged) -> float:
    return abs(judged.primary.change) if judged.primary else 0.0


def _screened(case: ComparedCase, base: Sequence[Run], head: Sequence[Run], rules: Rules) -> Judged:
    """All but the change itself: that is decided when all cases are known."""
    asked = rules.thresholds.of(case.rows[0]) if case.rows else Threshold()
    broken = tuple(thresholds.broken(case, asked))
    found = match.trouble(case, base, head, same_library=asked.same_library, allowed=rules.allowed)
    unknown = [one.sentence for one in broken if one.unknown]
    if found is None and unknown:
        found = Trouble(missing=False, reason="no-figure", sentence="; ".join(unknown))
    if found:
        verdict = Verdict.MISSING if found.missing else Verdict.INVALID
        admitted = _admitted(found, rules.allowed)
        return Judged(case, verdict, found.reason, found.sentence, asked, broken=broken, admitted=admitted)
    if not case.base:
        return Judged(case, Verdict.NEW, "new", "not in the baseline", asked, broken=broken)
    return Judged(case, Verdict.SAME, "", "", asked, broken=broken)


def _admitted(found: Trouble, allowed: frozenset[str]) -> bool:
    if found.reason in NEVER_ALLOWED:
        return False
    return found.reason in allowed or ("missing" if found.missing else "invalid") in allowed


def _effects(sound: Sequence[ComparedCase], *, paired: bool) -> Mapping[str, tuple[Effect, ...]]:
    """Per case in the domain to judge it by and in the other; the two domains are families of tests of their own."""
    flat = [(case, one) for case in sound for one in effects.replicates(case.before, case.after, paired=paired)]
    made = effects.effects([one for _, one in flat])
    by_case: dict[str, list[Effect]] = {case.name: [] for case in sound}
    for (case, _), effect in zip(flat, made, strict=True):
        by_case[case.name].append(effect)
    for place in (0, 1):
        with_it = [of_case for of_case in by_case.values() if len(of_case) > place]
        for of_case, effect in zip(with_it, effects.marked([one[place] for one in with_it]), strict=True):
            of_case[place] = effect
    return {name: tuple(of_case) for name, of_case in by_case.items()}


def _decided(judged: Judged, of_case: tuple[Effect, ...], allowed: frozenset[str], cases: int) -> Judged:
    threshold = _threshold(judged.case, judged.asked, allowed)
    verdict, reason, sentence = decide(of_case, threshold)
    return replace(
        judged,
        verdict=verdict,
        reason=reason,
        sentence=sentence,
        threshold=threshold,
        effects=of_case,
        detectable=of_case[0].detectable(threshold, cases),
    )


def _threshold(case: ComparedCase, asked: Threshold, allowed: frozenset[str]) -> float:
    """The case's threshold, plus the cost of allowed differences."""
    admitted = match.differences(case, same_library=asked.same_library)
    cost = sum(d.facet.cost for d in admitted if d.facet.name in allowed)
    median = min(row.median for row in case.before)
    return asked.in_log(median) + cost
