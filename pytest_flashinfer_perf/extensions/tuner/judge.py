"""What a report finds: choices that break a limit or cannot be used, and what became worse since an earlier report."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pytest_flashinfer_perf.api import formatting, share, thresholds
from pytest_flashinfer_perf.extensions.tuner.results import (
    DEFAULT,
    TUNE,
    CaseResult,
    LeftOut,
    TunerFinding,
)

FINE, FAILED, INCOMPLETE = 0, 1, 2


@dataclass(frozen=True)
class TunerLimits:
    """The limit of `[thresholds]` for the tuner's choices; None for no limit."""

    max_regret: Annotated[float | None, share] = None


def findings(cases: Sequence[CaseResult], limits: thresholds.Thresholds) -> Iterator[TunerFinding]:
    for case in cases:
        most = limits.limits(case.glob_names).get("max_regret")
        for way, name in grouped(case):
            yield from _of_way(case, way, name, most)
        if most is not None and (untimed := sum(one.state == "untimed" for one in case.tactics)):
            sentence = f"{formatting.counted(untimed, 'tactic')} of {len(case.tactics)} had no turn: raise --budget"
            yield TunerFinding("UNJUDGED", case.case, sentence)
        yield from _of_questions(case)
    idle = limits.without_match([name for case in cases for name in case.glob_names])
    for glob, entry in limits.entries:
        if glob in idle and "max_regret" in entry:
            yield TunerFinding("NOTE", glob, "[thresholds] has a limit for it, and it fits no case that was raced")


def grouped(case: CaseResult) -> list[tuple[str, str]]:
    """Ways with the tactic of each; fresh tunes that took the same one are told together."""
    others = [(way, name) for way, name in case.ways.items() if not way.startswith(TUNE)]
    each = Counter(case.tunes).most_common()
    return [*others, *((f"tuned, {number} of {len(case.tunes)}", name) for name, number in each)]


def outside(case: CaseResult) -> int:
    """How many fresh tunes took a tactic that is not among the best."""
    return sum(name not in case.best for name in case.tunes)


def _of_way(case: CaseResult, way: str, name: str, most: float | None) -> Iterator[TunerFinding]:
    tactic = case.tactic(name)
    if tactic is None:
        return
    if tactic.why and not tactic.is_unfit:
        yield TunerFinding("NOTE", case.case, f"{way} takes {name}: {tactic.why}")
    if tactic.is_unfit:
        yield TunerFinding("FAIL", case.case, f"{way} takes {name}, which is {tactic.state}: {tactic.why}")
    elif most is not None and tactic.regret is None:
        yield TunerFinding("UNJUDGED", case.case, f"max_regret = {100 * most:g}%: what {name} costs is not known")
    elif most is not None and tactic.regret and tactic.regret.high > most:
        sentence = f"max_regret = {100 * most:g}%: {way} takes {name}, {tactic.regret.sentence}"
        is_sure = tactic.regret.low > most
        yield TunerFinding("FAIL" if is_sure else "NOTE", case.case, sentence + ", which may be less" * (not is_sure))


def _of_questions(case: CaseResult) -> Iterator[TunerFinding]:
    if case.untuned:
        yield TunerFinding("NOTE", case.case, f"{', '.join(case.untuned)}: no entry covers it, the default is taken")
    for question in case.questions:
        for rounded in question.rounded:
            yield TunerFinding("NOTE", case.case, f"{question.op}: {rounded}")
        for broken in question.broken:
            sentence = f"{question.op}: lists no tactics, {broken}"
            yield TunerFinding("NOTE" if len(case.tactics) > 1 else "UNJUDGED", case.case, sentence)


def exit_code(cases: Sequence[CaseResult], left_out: Sequence[LeftOut], findings: Sequence[TunerFinding]) -> int:
    """1 if a way to choose is too slow or wrong, 2 if something failed or was not judged, or nothing was looked at."""
    if any(one.fails for one in findings):
        return FAILED
    failed = any(one.outcome == "failed" for one in left_out) or any(one.verdict == "UNJUDGED" for one in findings)
    return INCOMPLETE if failed or not cases else FINE


def grown(
    cases: Sequence[CaseResult],
    left_out: Sequence[LeftOut],
    before: Sequence[CaseResult],
    limits: thresholds.Thresholds,
) -> Iterator[TunerFinding]:
    """Against an earlier report: defaults whose regret grew, and what vanished: runners, tactics and cases."""
    earlier = {case.case: case for case in before}
    for left in left_out:
        if left.case in earlier:
            yield TunerFinding("UNJUDGED", left.case, f"it was raced in --base, and is left out here: {left.why}")
    if before and not any(case.case in earlier for case in cases):
        yield TunerFinding("UNJUDGED", "--base", "it has none of these cases")
    for case in cases:
        old = earlier.get(case.case)
        if old is None:
            continue
        if len({(one.device, one.instrument, one.cuda_graph) for one in (old, case)}) > 1:
            yield TunerFinding("NOTE", case.case, "not compared: --base was measured elsewhere or in another way")
            continue
        yield from _worse(case, old, limits.named(case.glob_names).in_log(best_s(old)))
        yield from _vanished(case, old)
        yield from _no_longer_rounded(case, old)


def _worse(case: CaseResult, old: CaseResult, threshold: float) -> Iterator[TunerFinding]:
    """A default whose regret surely grew by more than the gate's threshold.

    The bounds are those of one process. Between two of identical code a tactic's level differs by up to 2 %:
    evidence/tuner-h200-0.7.2.md.
    """
    now, then = (one.regret(one.ways[DEFAULT]) for one in (case, old))
    if now and then and math.log1p(now.low) - math.log1p(then.high) > threshold:
        as_fast = abs(math.log(best_s(case) / best_s(old))) <= threshold
        best = "though the best is as fast" if as_fast else "of another best"
        sentence = f"the default's regret grew from {then.sentence} to {now.sentence}, {best}"
        yield TunerFinding("SLOWER", case.case, sentence)


def _vanished(case: CaseResult, old: CaseResult) -> Iterator[TunerFinding]:
    for what, names in (("runner", _runners), ("tactic", _offered)):
        gone = sorted(names(old) - names(case))
        if gone:
            more = f" and {len(gone) - 3} more" * (len(gone) > 3)
            sentence = f"vanished since: {formatting.counted(len(gone), what)}, {', '.join(gone[:3])}{more}"
            yield TunerFinding("NOTE", case.case, sentence)


def _no_longer_rounded(case: CaseResult, old: CaseResult) -> Iterator[TunerFinding]:
    """Of sizes between the tuner's buckets; what is so now is told of the case itself."""
    gone = {one.op: set(one.rounded) for one in old.questions}
    for question in case.questions:
        for sentence in sorted(gone.get(question.op, set()).difference(question.rounded)):
            yield TunerFinding("NOTE", case.case, f"no longer as in --base, {question.op}: {sentence}")


def _runners(case: CaseResult) -> set[str]:
    return {runner for question in case.questions for runner in question.runners}


def _offered(case: CaseResult) -> set[str]:
    """The answers to each question, as which of them were combined depends on their times."""
    return {answer for one in case.tactics for answer in one.tactic.split("; ")}


def best_s(case: CaseResult) -> float:
    """The median of the fastest, in seconds; infinite where nothing could be timed."""
    best = case.tactic(case.best[0]) if case.best else None
    return statistics.median(best.seconds) if best else float("inf")
