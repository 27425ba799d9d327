"""How a report is shown: in the terminal, and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.api import formatting
from pytest_flashinfer_perf.extensions.tuner.found import DEFAULT, CaseFound, Report
from pytest_flashinfer_perf.extensions.tuner.judge import best_s, grouped, outside
from pytest_flashinfer_perf.extensions.tuner.race import MOST_ROUNDS

MOST_TRANSFERS, MOST_NAMES = 5, 4
MORE_ROUNDS, TOO_ALIKE = "more rounds would tell: raise --budget", "they differ too little to be told apart"
UNSURE = 0.03  # a member of the best set that is seen this far behind wants more rounds
HEADINGS = ("case", "tactics", "best set", "time", "default", "tuned, worst", "outside the best", "flips", "cache")


def lines(report: Report) -> Iterator[str]:
    for case in report.cases:
        yield ""
        yield from of_case(case)
    for left in report.left_out:
        yield f"{left.outcome} {left.case}: {left.why}"
    yield from transferred(report)
    yield from ("", *(one.line for one in report.findings))


def transferred(report: Report) -> Iterator[str]:
    for one in report.transfers[:MOST_TRANSFERS]:
        yield f"the best of {one.best_of} used in {one.used_in} ({one.flag} differs): {one.regret.sentence}"


def of_case(case: CaseFound) -> Iterator[str]:
    states = Counter(one.state for one in case.tactics)
    said = ", ".join(f"{number} {state}" for state, number in states.items())
    what = formatting.counted(len(case.tactics), "tactic" if case.questions else "choice")
    yield f"{case.case}: {what} ({said}), {formatting.counted(case.rounds, 'round')}"
    yield f"  {'best':<17}{best_set(case)}, {formatting.duration(best_s(case))}"
    for one in case.tactics:
        if one.state == "best" and one.regret is not None and one.regret.seen > UNSURE:
            why = MORE_ROUNDS if len(one.seconds) < MOST_ROUNDS else TOO_ALIKE
            yield f"  {'best, or not':<17}{one.tactic}: {one.regret.sentence}, {why}"
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
    findings = [(one.verdict, one.case, one.sentence) for one in report.findings]
    unfit = [
        (one.state, case.case, one.tactic, one.why) for case in report.cases for one in case.tactics if one.is_unfit
    ]
    left_out = [(one.outcome, one.case, one.why) for one in report.left_out]
    transfers = [(one.best_of, one.used_in, one.flag, one.regret.sentence) for one in report.transfers[:MOST_TRANSFERS]]
    parts = (
        ("Tactics", HEADINGS, list(map(_row, report.cases))),
        ("Findings", ("verdict", "case", "finding"), findings),
        ("Wrong or failing", ("state", "case", "tactic", "reason"), unfit),
        ("Left out", ("outcome", "case", "reason"), left_out),
        ("Transfers", ("best of", "used in", "differs in", "cost"), transfers),
    )
    return "\n".join(
        "\n".join([f"## {title}", "", *formatting.markdown_table(heads, rows), ""])
        for title, heads, rows in parts
        if rows
    )


def _row(case: CaseFound) -> Sequence[str]:
    cache = case.ways.get("cache")
    return (
        case.case,
        str(len(case.tactics)),
        best_set(case),
        formatting.duration(best_s(case)),
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
