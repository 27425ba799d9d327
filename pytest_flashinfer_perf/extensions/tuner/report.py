"""How a report is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_flashinfer_perf.api import formatting
from pytest_flashinfer_perf.extensions.tuner.judge import best_s, grouped, outside
from pytest_flashinfer_perf.extensions.tuner.results import CaseRace, Report

MOST_NAMES = 4  # of the best set


def lines(report: Report) -> Iterator[str]:
    for case in report.cases:
        yield ""
        yield from of_case(case)
    for left in report.left_out:
        yield f"{left.outcome} {left.case}: {left.why}"
    yield from ("", *(one.line for one in report.findings))


def of_case(case: CaseRace) -> Iterator[str]:
    states = Counter(one.state for one in case.tactics)
    counts = ", ".join(f"{number} {state}" for state, number in states.items())
    tactics, rounds = formatting.counted(len(case.tactics), "tactic"), formatting.counted(case.rounds, "round")
    yield f"{case.case}: {tactics} ({counts}), {rounds}"
    yield f"  {'best':<17}{best_set(case)}, {formatting.duration(best_s(case))}"
    for way, name in grouped(case):
        yield f"  {way:<17}{name}: {cost(case, name)}"
    if case.tunes:
        yield f"  {'':<17}outside the best set: {outside(case)}"
    for one in case.tactics:
        if one.is_unfit or one.state == "untimed":
            yield f"  {one.state:<17}{one.tactic}: {one.why}"


def best_set(case: CaseRace) -> str:
    shown = ", ".join(case.best[:MOST_NAMES])
    return "{" + shown + f" and {len(case.best) - MOST_NAMES} more" * (len(case.best) > MOST_NAMES) + "}"


def cost(case: CaseRace, name: str) -> str:
    """The regret of a tactic, in words."""
    if name in case.best:
        return "among the best"
    regret = case.regret(name)
    return regret.sentence if regret else "not known"
