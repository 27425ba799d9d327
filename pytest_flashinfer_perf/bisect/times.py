"""Bisect times, on the GPU or on the host, in alternating pairs of processes, as many as the verdicts need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from glob import escape
from typing import Literal, Protocol

from pytest_flashinfer_perf.bisect.question import Answer, Finding, PointError, Question, Side, skipped
from pytest_flashinfer_perf.gate import likeness, words
from pytest_flashinfer_perf.gate.plan import Plan
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Rules, Verdict
from pytest_flashinfer_perf.launch.pairs import Pairs
from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.run_file import Run

ANSWERS = {
    Verdict.SLOWER: Answer.CHANGED,
    Verdict.SAME: Answer.UNCHANGED,
    Verdict.FASTER: Answer.UNCHANGED,  # a change in the other direction is not the one that is searched for
}
SIGNS: Mapping[str, Literal[1, -1]] = {"slower": 1, "faster": -1}
SIDES: tuple[Side, Side] = ("base", "head")
ON_HOST = {"host": "slower to enqueue", "plan": "slower to plan"}


class Instrument(Protocol):
    """Measures these cases, or all, at one point in a new process; raises PointError."""

    def __call__(self, question: Question, side: Side, nth: int, cases: Iterable[str] | None) -> Run: ...


class SaveVerdicts(Protocol):
    """Stores the verdicts of a question."""

    def __call__(self, question: Question, judgement: Judgement) -> None: ...


@dataclass(frozen=True)
class Times:
    """Compares two points by time. `sign` is 1 to search for slower, -1 for faster, which swaps base and head."""

    instrument: Instrument
    rules: Rules
    save_verdicts: SaveVerdicts
    sign: Literal[1, -1] = 1
    pairs: int = 5
    most_pairs: int = 10

    def __call__(self, question: Question) -> Mapping[str, Finding]:
        rules = replace(self.rules, thresholds=self._leveled(question)) if question.levels else self.rules
        plan = Plan(self.pairs, self.most_pairs)
        try:
            judgement = plan.follow(lambda nth, cases: self._pair(question, nth, cases), rules)
        except PointError as error:
            return skipped(question, error)
        self.save_verdicts(question, judgement)
        found = {judged.name: self._finding(judged) for judged in judgement.cases}
        absent = Finding(Answer.SKIP, "not measured on either side")
        return {**{case: replace(absent, test=test) for case, test in question.tests.items()}, **found}

    def _leveled(self, question: Question) -> Thresholds:
        """Thresholds with the levels of the question, without an absolute floor."""
        name = "slower_host" if self.rules.quantity else "slower"
        levels = question.levels.items()
        return Thresholds(tuple((escape(case), {name: math.expm1(level), "floor_us": 0.0}) for case, level in levels))

    def _pair(self, question: Question, nth: int, cases: frozenset[str] | None) -> tuple[Run, Run]:
        wanted = cases if cases is not None else question.tests or None
        base, head = Pairs(SIDES, lambda side, nth, _: self.instrument(question, side, nth, wanted))(nth)
        return (base, head) if self.sign == 1 else (head, base)

    def _finding(self, judged: Judged) -> Finding:
        answer = ANSWERS.get(judged.verdict, Answer.SKIP)
        case = judged.case if self.sign == 1 else replace(judged.case, base=judged.case.head, head=judged.case.base)
        test = case.rows[0].fullname if case.rows else ""
        if judged.primary is None or judged.threshold is None:
            return Finding(answer, f"{judged.verdict.value}: {judged.reason}: {judged.sentence}", test)
        change = self.sign * judged.primary.change
        sure = self.sign * judged.primary.bound(-1) if answer is Answer.CHANGED else None
        shown = replace(judged, case=case)
        sentence = f"{words.times(shown)}: {judged.primary.seen.domain} {words.percent(change)}"
        if answer is Answer.SKIP:
            sentence = f"{sentence}; {judged.verdict.value}: {judged.reason}: {judged.sentence}"
        return Finding(answer, sentence, test, change, sure, judged.threshold, tuple(_others(shown)))


def _others(judged: Judged) -> Iterable[str]:
    """Other differences between the sides: kernels, clock, the chosen backend, libraries."""
    yield from words.remarks(judged)
    before, after = _backends(judged.case.before), _backends(judged.case.after)
    if before != after:
        yield f"backend {before} -> {after}"
    sides = [[run for run, _ in side] for side in (judged.case.base, judged.case.head)]
    yield from likeness.changed_libraries(*sides)


def _backends(rows: Iterable[Row]) -> str:
    return " and ".join(dict.fromkeys(str(row.setup.resolved_backend or "unknown") for row in rows))
