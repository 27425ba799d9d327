"""How a report is shown: in the terminal, and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.rows.formatting import counted, duration, markdown_table
from pytest_flashinfer_perf.tuner.found import DEFAULT, CaseFound, Report
from pytest_flashinfer_perf.tuner.judge import best_s, grouped, outside

MOST_TRANSFERS, MOST_NAMES = 5, 4
UNSURE = 0.03  # a member of the best set that is seen this far behind wants more rounds
HEADINGS = ("case", "tactics", "best set", "time", "default", "tuned, worst", "outside the best", "flips", "cache")


def lines(report: Report) -> Iterator[str]:
    for case in report.cases:
        yield ""
        yield from of_case(case)
    for left in report.left_out:
        yield f"{left.outcome} {left.case}: {left.why}"
    for one in report.transfers[:MOST_TRANSFERS]:
        cost = one.regret.sentence
        yield f"the best of {one.best_of} used in {one.used_in} ({one.flag} differs): {cost}"
    yield from ("", *(one.line for one in report.findings))


def of_case(case: CaseFound) -> Iterator[str]:
    states = Counter(one.state for one in case.tactics)
    said = ", ".join(f"{number} {state}" for state, number in states.items())
    what = counted(len(case.tactics), "tactic" if case.questions else "choice")
    yield f"{case.case}: {what} ({said}), {counted(case.rounds, 'round')}"
    yield f"  {'best':<17}{best_set(case)}, {duration(best_s(case))}"
    for name in case.best:
        regret = case.regret(name)
        if regret is not None and regret.seen > UNSURE:
            yield f"  {'best, or not':<17}{name}: {regret.sentence}, more rounds would tell: raise --budget"
    for way, name in grouped(case):
        yield f"  {way:<17}{name}: {cost(case, name)}"
    if case.tunes:
        yield f"  {'':<17}outside the best set: {outside(case)}, flips between sets: {case.flips}"
    for one in case.tactics:
        if one.is_unfit or one.state == "untimed":
            yield f"  {one.state:<17}{one.tactic}: {one.why}"


def best_set(case: CaseFound) -> str:
    shown = ", ".join(case.best[:MOST_NAMES])
    return "{" + shown + f" and {len(case.best) - MOST_NAMES} more" * (len(case.best) > MOST_NAMES) + "}"


def cost(case: CaseFound, name: str) -> str:
    """The regret of a tactic, in words."""
    if name in case.best:
        return "among the best"
    regret = case.regret(name)
    return regret.sentence if regret else "not known"


def summary(case: CaseFound) -> str:
    """The line of a row."""
    return f"of {len(case.tactics)} choices the best: {best_set(case)}; the default: {cost(case, case.ways[DEFAULT])}"


def markdown(report: Report) -> str:
    said = [(one.verdict, one.case, one.sentence) for one in report.findings]
    verdicts = ["", "## Findings", "", *markdown_table(("verdict", "case", "finding"), said)] if said else []
    return "\n".join(["## Tactics", "", *markdown_table(HEADINGS, map(_row, report.cases)), *verdicts, ""])


def _row(case: CaseFound) -> Sequence[str]:
    cache = case.ways.get("cache")
    return (
        case.case,
        str(len(case.tactics)),
        best_set(case),
        duration(best_s(case)),
        cost(case, case.ways[DEFAULT]),
        cost(case, max(case.tunes, key=lambda name: _seen(case, name))) if case.tunes else "-",
        f"{outside(case)} of {len(case.tunes)}" if case.tunes else "-",
        str(case.flips) if case.tunes else "-",
        "-" if cache is None else cost(case, cache),
    )


def _seen(case: CaseFound, name: str) -> float:
    """The regret to order by; of what cannot be used it is the largest."""
    found = case.tactic(name)
    if found is not None and found.regret is not None:
        return found.regret.seen
    return float("inf") if found is not None and found.is_unfit else 0.0
