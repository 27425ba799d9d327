"""What a report finds: choices that break a limit or cannot be used."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pytest_flashinfer_perf.api import formatting, share, thresholds
from pytest_flashinfer_perf.extensions.tuner.results import (
    TUNE,
    CaseRace,
    LeftOut,
    TunerFinding,
)

FINE, FAILED, INCOMPLETE = 0, 1, 2


@dataclass(frozen=True)
class TunerLimits:
    """The limit of `[thresholds]` for the tuner's choices; None for no limit."""

    max_regret: Annotated[float | None, share] = None


def findings(cases: Sequence[CaseRace], limits: thresholds.Thresholds) -> Iterator[TunerFinding]:
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


def grouped(case: CaseRace) -> list[tuple[str, str]]:
    """Ways with the tactic of each; fresh tunes that took the same one are told together."""
    others = [(way, name) for way, name in case.ways.items() if not way.startswith(TUNE)]
    each = Counter(case.tunes).most_common()
    return [*others, *((f"tuned, {number} of {len(case.tunes)}", name) for name, number in each)]


def outside(case: CaseRace) -> int:
    """The number of fresh tunes that took a tactic which is not among the best."""
    return sum(name not in case.best for name in case.tunes)


def _of_way(case: CaseRace, way: str, name: str, most: float | None) -> Iterator[TunerFinding]:
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


def _of_questions(case: CaseRace) -> Iterator[TunerFinding]:
    if case.untuned:
        yield TunerFinding("NOTE", case.case, f"{', '.join(case.untuned)}: no entry covers it, the default is taken")
    for question in case.questions:
        for broken in question.broken:
            sentence = f"{question.op}: lists no tactics, {broken}"
            yield TunerFinding("NOTE" if len(case.tactics) > 1 else "UNJUDGED", case.case, sentence)


def exit_code(cases: Sequence[CaseRace], left_out: Sequence[LeftOut], findings: Sequence[TunerFinding]) -> int:
    """1 if a way to choose is too slow or wrong, 2 if something failed or was not judged, or nothing was looked at."""
    if any(one.fails for one in findings):
        return FAILED
    failed = any(one.outcome == "failed" for one in left_out) or any(one.verdict == "UNJUDGED" for one in findings)
    return INCOMPLETE if failed or not cases else FINE


def best_s(case: CaseRace) -> float:
    """The median of the fastest, in seconds; infinite where nothing could be timed."""
    best = case.tactic(case.best[0]) if case.best else None
    return statistics.median(best.seconds) if best else float("inf")
