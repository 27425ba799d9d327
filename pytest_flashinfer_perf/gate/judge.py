"""Judge: here it is decided that a case is SLOWER.

A judgement is made in this order. Rows are matched, and a case that is missing, wrong or measured otherwise is judged
by that alone (`_screened`). The others' effects are looked at together, for some of many are large by chance
(`_families`); an effect beyond its case's threshold, and not by chance, is SLOWER or FASTER (`decide`). The gaps
between kernels are a family of their own, which decides where the whole call became longer or shorter. What a second
instrument contradicts is AMBIGUOUS (`_witnessed`). Host time is a family too, which decides only where `slower_host` is
asked for, or the rules judge by it alone. The sum of a model's step comes last (`extensions/models/verdicts.py`). What
other processes show of suspects since is added by `confirmation.py`.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_flashinfer_perf.extensions.models import budget, verdicts
from pytest_flashinfer_perf.extensions.models.verdicts import JudgedStep, TimedCase
from pytest_flashinfer_perf.gate import calm, effects, figures, match, noise, speeds, student, thresholds
from pytest_flashinfer_perf.gate.effects import Domain, Effect
from pytest_flashinfer_perf.gate.match import ComparedCase, Reason, Trouble
from pytest_flashinfer_perf.gate.thresholds import Threshold
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Rules, Verdict
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run

REMEDY = "run more processes (`flashinfer-perf ab`)"

Decision = tuple[Verdict, Reason, str]


def judge(base: Sequence[Run], head: Sequence[Run], rules: Rules) -> Judgement:
    """Give each case of both sides its verdict."""
    cases = match.cases(base, head, paired=rules.paired)
    judged = {case.name: _screened(case, base, head, rules) for case in cases}
    sound = [one.case for one in judged.values() if one.verdict is Verdict.SAME]
    for decided in (True, False):  # what a busy machine shows is no evidence about the others
        family = [case for case in sound if (calm.obstacle(case) is None) is decided]
        for name, of_case in _families(family, paired=rules.paired).items():
            judged[name] = _compared(judged[name], of_case, rules.allowed, len(family))
    judged |= _with_gaps([judged[case.name] for case in sound], paired=rules.paired)
    judged |= {case.name: _witnessed(judged[case.name], paired=rules.paired) for case in sound}
    judged |= _with_host_time([judged[case.name] for case in sound], paired=rules.paired)
    if rules.quantity:
        judged |= {case.name: _by_host_alone(judged[case.name], rules.quantity, len(sound)) for case in sound}
    ranked = tuple(sorted(judged.values(), key=lambda one: (one.verdict.rank, -one.size)))
    return Judgement(ranked, tuple(base), tuple(head), rules, steps=tuple(_steps(ranked, head, rules)))


def _screened(case: ComparedCase, base: Sequence[Run], head: Sequence[Run], rules: Rules) -> Judged:
    """All but the change itself: that is decided when all cases are known."""
    asked = rules.thresholds.of(case.rows[0]) if case.rows else Threshold()
    broken = tuple(thresholds.broken(case, asked))
    unknown = [one.sentence for one in broken if one.unknown]
    found = match.trouble(case, base, head, same_library=asked.same_library, allowed=rules.allowed)
    if found is None and unknown:
        found = Trouble(Reason.NO_FIGURE, "; ".join(unknown))
    if found:
        verdict = Verdict.MISSING if found.missing else Verdict.INVALID
        admitted = match.is_admitted(found, rules.allowed)
        return Judged(case, verdict, found.reason, found.sentence, asked, broken=broken, admitted=admitted)
    if not case.base:
        return Judged(case, Verdict.NEW, Reason.NEW, "not in the baseline", asked, broken=broken)
    decisive = calm.rows(case, paired=rules.paired)
    return Judged(decisive, Verdict.SAME, Reason.WITHIN_THRESHOLD, "", asked, broken=broken)


def _families(sound: Sequence[ComparedCase], *, paired: bool) -> Mapping[str, tuple[Effect, ...]]:
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


def _compared(judged: Judged, of_case: tuple[Effect, ...], allowed: frozenset[str], cases: int) -> Judged:
    """The case judged by its own threshold, plus the cost of differences that are allowed."""
    admitted = match.differences(judged.case, same_library=judged.asked.same_library)
    cost = sum(one.facet.cost for one in admitted if one.facet.reason in allowed)
    threshold = judged.asked.in_log(min(one.value for one in figures.kernel_times(judged.case.before))) + cost
    return _settled(judged, _decided(judged.case, of_case, threshold), of_case, threshold, cases)


def _settled(judged: Judged, decision: Decision, of_case: tuple[Effect, ...], threshold: float, cases: int) -> Judged:
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


def _decided(case: ComparedCase, of_case: Sequence[Effect], threshold: float) -> Decision:
    """AMBIGUOUS where these rows cannot decide it, whatever they show."""
    obstacle = calm.obstacle(case, of_case[0].seen.domain)
    return (Verdict.AMBIGUOUS, *obstacle) if obstacle else decide(of_case, threshold)


def decide(of_case: Sequence[Effect], threshold: float) -> Decision:
    """The verdict for a change and its noise; the first effect is in the domain to judge by."""
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
    levels = speeds.two(primary.seen.before, primary.seen.after)
    if levels:
        said = speeds.sentence(primary.seen.domain, levels)
        return Verdict.AMBIGUOUS, Reason.TWO_SPEEDS, f"{said}, and processes of one side have both"
    if other and sign * other.bound(sign) < threshold:
        return _only(primary)
    return verdict, Reason(verdict.value.lower()), f"beyond the threshold in {primary.seen.domain}"


def _only(effect: Effect) -> Decision:
    """Changed in one domain and not in the other."""
    if effect.seen.domain is Domain.CYCLES:
        why = "cycles and not in time: the SM clock changed, or it waits for memory"
        return Verdict.AMBIGUOUS, Reason.CYCLES_ONLY, f"changed in {why}"
    why = "time and not in cycles: the SM clock changed, or it waits for something else than its SMs or memory"
    return Verdict.AMBIGUOUS, Reason.TIME_ONLY, f"changed in {why}"


# A second instrument for what CUPTI says of kernels: stamps of the GPU's timer around calls of its own, which CUPTI has
# no part in (engine/clocks.py). Each row has them for its cycles. Gaps are the rest of CUPTI's time, so a record
# that is wrong about the kernels is wrong about them too.

CHANGED = (Verdict.SLOWER, Verdict.FASTER)


def _witnessed(judged: Judged, *, paired: bool) -> Judged:
    """A change that CUPTI says there is, unless the stamps surely do not show it."""
    claim = next((one for one in judged.effects if one.seen.domain in (Domain.TIME, Domain.BUSY)), None)
    by_cupti = all(row.provenance.instrument == "cupti" for row in judged.case.rows)
    counted = judged.primary is not None and judged.primary.seen.kind == "cycles"
    suspect = judged.verdict in CHANGED or judged.reason is Reason.TIME_ONLY
    if not suspect or claim is None or not claim.significant or counted or not by_cupti:
        return judged
    seen = effects.stamped_replicates(judged.case.before, judged.case.after, paired=paired)
    if seen is None:
        return judged
    [witness] = effects.effects([seen])
    judged = replace(judged, effects=(*judged.effects, witness))
    if not contradicts(witness, claim):
        return judged
    sentence = f"CUPTI says {_percent(claim.change)}, stamps around other calls say {_percent(witness.change)}"
    return replace(judged, verdict=Verdict.AMBIGUOUS, reason=Reason.INSTRUMENTS_DISAGREE, sentence=sentence)


def contradicts(witness: Effect, claim: Effect) -> bool:
    """Whether what a witness shows is nearer to no change than to this one, and that is beyond the noise of both."""
    error = math.hypot(witness.error, claim.error)
    beyond_noise = student.t_quantile(effects.RISK, min(witness.noise.df, claim.noise.df)) * error
    sign = math.copysign(1.0, claim.change)
    missing, shown = sign * (claim.change - witness.change), sign * witness.change
    return missing > beyond_noise and 2 * shown < abs(claim.change)


# Gaps between kernels change with the machine's load, and kernels do not. They are shown beside a case's kernels.


def _with_gaps(sound: Sequence[Judged], *, paired: bool) -> dict[str, Judged]:
    """The cases of which a row has gaps, with the effect on these."""
    seen = {one.name: effects.gap_replicates(one.case.before, one.case.after, paired=paired) for one in sound}
    known = {name: one for name, one in seen.items() if one}
    made = dict(zip(known, effects.marked(effects.effects(list(known.values()))), strict=True))
    return {one.name: _held_to_gaps(one, made[one.name], len(made)) for one in sound if one.name in made}


def _held_to_gaps(judged: Judged, effect: Effect, cases: int) -> Judged:
    """Its gaps decide where they changed significantly and the whole call changed with them; they hide no kernel."""
    threshold = judged.threshold or 0.0
    verdict, _, _ = decide([effect], threshold)
    sign = {Verdict.SLOWER: 1, Verdict.FASTER: -1}.get(verdict, 0)
    decides = sign * _whole(judged) > threshold and verdict.rank < judged.verdict.rank
    if not sign or not decides:
        return replace(judged, effects=(*judged.effects, effect))
    sentence = f"{verdict.value.lower()} by the gaps between its kernels"
    decision = verdict, Reason(f"{verdict.value.lower()}-gaps"), sentence
    return _settled(judged, decision, (effect, *judged.effects), threshold, cases)


def _whole(judged: Judged) -> float:
    """The change of the calls with their gaps."""
    before, after = (statistics.median(row.median for row in side) for side in (judged.case.before, judged.case.after))
    return math.log(after / before)


# Host time can grow while the GPU takes as long as before. It is shown beside a case's time in any case.

QUANTITIES = {Domain.HOST: "the time to enqueue it", Domain.PLAN: "the time to plan it"}
ALONE = 0.1  # the share that counts where one is judged alone and `slower_host` is not set


def _with_host_time(sound: Sequence[Judged], *, paired: bool) -> dict[str, Judged]:
    """The cases whose rows have host times, with the effects on these; each quantity is a family of tests."""
    found: dict[str, list[Effect]] = {}
    for quantity in QUANTITIES:
        both = {one.name: (one.case.before, one.case.after) for one in sound}
        seen = {name: effects.host_replicates(quantity, *sides, paired=paired) for name, sides in both.items()}
        known = {name: one for name, one in seen.items() if one}
        expected = replace(noise.assumed(quantity), source="other hosts")  # quiet cases say little of one that is not
        made = effects.marked(effects.effects(list(known.values()), expected))
        for name, effect in zip(known, made, strict=True):
            found.setdefault(name, []).append(effect)
    return {one.name: _held_to_host(one, found[one.name], len(found)) for one in sound if one.name in found}


def _held_to_host(judged: Judged, found: Sequence[Effect], cases: int) -> Judged:
    """The verdict that people want to read first is the case's, whichever quantity it is of."""
    if judged.asked.slower_host is None:
        return replace(judged, effects=(*judged.effects, *found))
    threshold = math.log1p(judged.asked.slower_host)
    for effect in found:
        by_host = _by_host(threshold, judged, effect, cases)
        first = by_host.verdict.rank < judged.verdict.rank
        shown = by_host if first else replace(judged, effects=(*judged.effects, effect))
        judged = replace(shown, held_too=(*judged.held_too, (effect, threshold)))
    return judged


def _by_host_alone(judged: Judged, quantity: Domain, cases: int) -> Judged:
    """The case judged by this quantity, whatever became of the others."""
    effect = judged.effect_in(quantity)
    if effect is None:
        sentence = f"{QUANTITIES[quantity]} is not written for each of its rows"
        invalid = replace(judged, verdict=Verdict.INVALID, reason=Reason.NO_FIGURE, sentence=sentence)
        return replace(invalid, effects=(), threshold=None)
    others = tuple(one for one in judged.effects if one is not effect)
    asked = judged.asked.slower_host
    threshold = math.log1p(ALONE if asked is None else asked)
    return _by_host(threshold, replace(judged, effects=others, held_too=()), effect, cases)


def _by_host(threshold: float, judged: Judged, effect: Effect, cases: int) -> Judged:
    verdict, reason, sentence = _decided(judged.case, [effect], threshold)
    domain = effect.seen.domain
    what = QUANTITIES[domain]
    if verdict in (Verdict.SLOWER, Verdict.FASTER):
        there = " on the host alone" if judged.verdict in (Verdict.SAME, Verdict.FASTER) else ""
        reason = Reason(f"{reason}-{domain}")
        sentence = f"{verdict.value.lower()}{there}: {what} changed by more than slower_host"
    else:
        sentence = f"{what}: {sentence}"
    return _settled(judged, (verdict, reason, sentence), (effect, *judged.effects), threshold, cases)


# The sum of each model's step, or of traffic, of which this run has one, from the times of its cases.


def _steps(cases: Sequence[Judged], head: Sequence[Run], rules: Rules) -> Iterator[JudgedStep]:
    timed: dict[budget.ProblemKey, list[TimedCase]] = defaultdict(list)
    for one in cases:
        seconds = (_seconds(one.case.before), _seconds(one.case.after))
        for key in {key for row in one.case.rows for key in budget.keys_of(row.params)}:  # releases name axes otherwise
            timed[key].append(TimedCase(*seconds, _unsure(one)))
    for plan in {run.step.name: run.step for run in head if run.step is not None}.values():
        if plan.traffic is None:
            yield verdicts.judged(plan, timed, rules.steps.of(plan.name))
        else:
            yield verdicts.judged_traffic(plan, plan.traffic, timed, rules.traffic.of)


def _seconds(rows: Sequence[Row]) -> float | None:
    """The median over processes, of answers that are right."""
    medians = [row.median for row in rows if row.status in budget.USABLE]
    return statistics.median(medians) if medians else None


def _unsure(one: Judged) -> float | None:
    """How far its time may be off, its gaps included, as a share; None of a case that is not compared."""
    parts = [effect for effect in one.effects if effect.seen.domain in (Domain.TIME, Domain.BUSY, Domain.GAPS)]
    return math.fsum(student.t_quantile(effects.RISK, part.noise.df) * part.error for part in parts) if parts else None


def _percent(change: float) -> str:
    return f"{100 * math.expm1(change):+.2f} %"
