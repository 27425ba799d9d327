"""Judge: here it is decided that a case is SLOWER.

Rows are matched, and a case that is missing, wrong or measured otherwise is judged by that alone (`_screened`). The
others are judged by one family of tests after the other: their kernels' time, the gaps between kernels, a second
instrument, and the quantities that extensions add (`quantity.py`). A later one may take a verdict over from those
before it. What extensions sum up of the run comes last. What other processes show of suspects since is added by
`confirmation.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_flashinfer_perf.errors import FlashinferPerfError, unknown
from pytest_flashinfer_perf.gate import effects, figures, loaded_machine, match, student, thresholds, words
from pytest_flashinfer_perf.gate.decision import decide, with_decision
from pytest_flashinfer_perf.gate.effects import Domain, Effect
from pytest_flashinfer_perf.gate.match import ComparedCase, Reason, Trouble
from pytest_flashinfer_perf.gate.thresholds import Broken, Threshold
from pytest_flashinfer_perf.gate.verdict import CHANGED, Judged, Judgement, Rules, Verdict
from pytest_flashinfer_perf.rows.run_file import Run

Family = Callable[[Sequence[Judged], Rules], Mapping[str, Judged]]  # the sound cases that it judges otherwise


def judge(base: Sequence[Run], head: Sequence[Run], rules: Rules) -> Judgement:
    """Give each case of both sides its verdict."""
    # Match the rows of both sides, and judge at once what is missing, wrong, new or measured otherwise.
    cases = match.cases(base, head, paired=rules.paired)
    judged = {case.name: _screened(case, base, head, rules) for case in cases}
    sound = [name for name, one in judged.items() if one.verdict is Verdict.SAME]

    # Look at all others together, in each family: of many changes some are large by chance.
    for family in families(rules):
        judged |= family([judged[name] for name in sound], rules)

    # The worst first, and then what is summed up of them.
    ranked = tuple(sorted(judged.values(), key=lambda one: (one.verdict.rank, -one.size)))
    summed = [one.judged(ranked, head, rules.sections) for one in rules.sums]
    sums = tuple(one for of_one, _ in summed for one in of_one)
    notes = tuple(note for _, of_one in summed for note in of_one)
    return Judgement(ranked, tuple(base), tuple(head), rules, sums=sums, notes=notes)


def families(rules: Rules) -> Iterator[Family]:
    """Give the families in the order in which they decide."""
    yield from (_by_kernels, _by_gaps, _by_witness)
    yield from (quantity.judged for quantity in rules.quantities)
    if rules.quantity:
        yield _by_one_alone


def _screened(case: ComparedCase, base: Sequence[Run], head: Sequence[Run], rules: Rules) -> Judged:
    """Judge all but the change itself, which is decided when all cases are known."""
    limits = rules.thresholds.of(case.rows[0]) if case.rows else Threshold()
    broken = tuple(_broken(case, limits, rules))
    lacking = [one.sentence for one in broken if one.unknown]
    trouble = match.trouble(case, base, head, rules.allowed)
    if trouble is None and lacking:
        trouble = Trouble(Reason.NO_FIGURE, "; ".join(lacking))
    if trouble:
        verdict = Verdict.MISSING if trouble.missing else Verdict.INVALID
        admitted = match.is_admitted(trouble, rules.allowed)
        return Judged(case, verdict, trouble.reason, trouble.sentence, limits, broken=broken, admitted=admitted)
    if not case.base:
        return Judged(case, Verdict.NEW, Reason.NEW, "not in the baseline", limits, broken=broken)
    decisive = loaded_machine.without_loaded_rows(case, paired=rules.paired)
    return Judged(decisive, Verdict.SAME, Reason.WITHIN_THRESHOLD, "", limits, broken=broken)


def _broken(case: ComparedCase, limits: Threshold, rules: Rules) -> Iterator[Broken]:
    """Name the limits without a baseline that the case does not keep."""
    if case.head:
        yield from thresholds.broken(case, limits)
        for quantity in rules.quantities:
            yield from quantity.broken(case, limits.of(quantity.limits))


# The time or the cycles of kernels. An effect beyond its case's threshold, and not by chance, is SLOWER or FASTER.


def _by_kernels(sound: Sequence[Judged], rules: Rules) -> dict[str, Judged]:
    """Judge all sound cases; those of a loaded machine are a family of their own, as they say nothing of the others."""
    judged: dict[str, Judged] = {}
    for decided in (True, False):
        family = {one.name: one for one in sound if (loaded_machine.undecidable_reason(one.case) is None) is decided}
        by_case = _effects([one.case for one in family.values()], paired=rules.paired)
        judged |= {name: _compared(one, by_case[name], rules.allowed, len(family)) for name, one in family.items()}
    return judged


def _effects(sound: Sequence[ComparedCase], *, paired: bool) -> Mapping[str, tuple[Effect, ...]]:
    """Give each case's effects in the domain to judge by and in the other; each domain is a family of tests."""
    flat = [(case, one) for case in sound for one in effects.replicates(case.before, case.after, paired=paired)]
    results = effects.effects([one for _, one in flat])
    by_case: dict[str, list[Effect]] = {case.name: [] for case in sound}
    for (case, _), effect in zip(flat, results, strict=True):
        by_case[case.name].append(effect)
    for place in (0, 1):
        with_it = [of_case for of_case in by_case.values() if len(of_case) > place]
        for of_case, effect in zip(with_it, effects.with_significance([one[place] for one in with_it]), strict=True):
            of_case[place] = effect
    return {name: tuple(of_case) for name, of_case in by_case.items()}


def _compared(judged: Judged, of_case: tuple[Effect, ...], allowed: frozenset[str], cases: int) -> Judged:
    """Judge a case by its own threshold, plus the cost of differences that are allowed."""
    admitted = match.differences(judged.case)
    cost = sum(one.facet.cost for one in admitted if one.facet.reason in allowed)
    threshold = judged.limits.in_log(min(one.value for one in figures.kernel_times(judged.case.before))) + cost
    decision = decide(of_case, threshold, loaded_machine.undecidable_reason(judged.case))
    return with_decision(judged, decision, of_case, threshold, cases)


# Gaps between kernels change with the machine's load, and kernels do not. They are shown beside a case's kernels.


def _by_gaps(sound: Sequence[Judged], rules: Rules) -> dict[str, Judged]:
    """Judge the cases of which a row has gaps, by the effect on these."""
    of_cases = {one.name: effects.gap_replicates(one.case.before, one.case.after, paired=rules.paired) for one in sound}
    with_gaps = {name: one for name, one in of_cases.items() if one}
    results = dict(zip(with_gaps, effects.with_significance(effects.effects(list(with_gaps.values()))), strict=True))
    return {one.name: _judge_gaps(one, results[one.name], len(results)) for one in sound if one.name in results}


def _judge_gaps(judged: Judged, effect: Effect, cases: int) -> Judged:
    """Let gaps decide where they changed significantly and the whole call with them; they hide no slower kernel."""
    threshold = judged.threshold or 0.0
    verdict, _, _ = decide([effect], threshold)
    sign = {Verdict.SLOWER: 1, Verdict.FASTER: -1}.get(verdict, 0)
    decides = sign * _whole(judged) > threshold and verdict.rank < judged.verdict.rank
    if not sign or not decides:
        return replace(judged, effects=(*judged.effects, effect))
    sentence = f"{verdict.value.lower()} by the gaps between its kernels"
    decision = verdict, Reason(f"{verdict.value.lower()}-gaps"), sentence
    return with_decision(judged, decision, (effect, *judged.effects), threshold, cases)


def _whole(judged: Judged) -> float:
    """Give the change of whole calls, gaps included."""
    before, after = (statistics.median(row.median for row in side) for side in (judged.case.before, judged.case.after))
    return math.log(after / before)


# A second instrument for what CUPTI says of kernels: stamps of the GPU's timer around calls of its own, which CUPTI has
# no part in (engine/clocks.py). Each row has them for its cycles. Gaps are the rest of CUPTI's time, so a record
# that is wrong about the kernels is wrong about them too.


def _by_witness(sound: Sequence[Judged], rules: Rules) -> dict[str, Judged]:
    return {one.name: _witnessed(one, paired=rules.paired) for one in sound}


def _witnessed(judged: Judged, *, paired: bool) -> Judged:
    """Doubt a change that CUPTI shows if the stamps surely do not show it."""
    claim = next((one for one in judged.effects if one.replicates.domain in (Domain.TIME, Domain.BUSY)), None)
    by_cupti = all(row.provenance.instrument == "cupti" for row in judged.case.rows)
    counted = judged.primary is not None and judged.primary.replicates.kind == "cycles"
    suspect = judged.verdict in CHANGED or judged.reason is Reason.TIME_ONLY
    if not suspect or claim is None or not claim.significant or counted or not by_cupti:
        return judged
    stamped = effects.stamped_replicates(judged.case.before, judged.case.after, paired=paired)
    if stamped is None:
        return judged
    [witness] = effects.effects([stamped])
    judged = replace(judged, effects=(*judged.effects, witness))
    if not contradicts(witness, claim):
        return judged
    in_cupti, in_stamps = words.percent(claim.change), words.percent(witness.change)
    sentence = f"CUPTI says {in_cupti}, stamps around other calls say {in_stamps}"
    return replace(judged, verdict=Verdict.AMBIGUOUS, reason=Reason.INSTRUMENTS_DISAGREE, sentence=sentence)


def contradicts(witness: Effect, claim: Effect) -> bool:
    """Whether the witness shows less than half of the claimed change, beyond the noise of both."""
    error = math.hypot(witness.error, claim.error)
    beyond_noise = student.t_quantile(effects.RISK, min(witness.noise.df, claim.noise.df)) * error
    sign = math.copysign(1.0, claim.change)
    missing, by_stamps = sign * (claim.change - witness.change), sign * witness.change
    return missing > beyond_noise and 2 * by_stamps < abs(claim.change)


# One figure of an extension's quantity, where nothing else is searched for.


def _by_one_alone(sound: Sequence[Judged], rules: Rules) -> dict[str, Judged]:
    name, by_name = str(rules.quantity), {name: one for one in rules.quantities for name in one.names}
    if name not in by_name:
        raise FlashinferPerfError(f"nothing is judged by {name}: {unknown(name, by_name)}")
    return {one.name: by_name[name].alone(one, name, len(sound)) for one in sound}
