"""Bisect times, on the GPU or on the host, in alternating pairs of processes, as many as the verdicts need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from glob import escape
from typing import Literal

from pytest_flashinfer_perf.api import Row, Run, effects, match, thresholds, verdict, words
from pytest_flashinfer_perf.extensions.bisect.bisection import CaseFinding, PointError, Question, Side, skipped
from pytest_flashinfer_perf.extensions.bisect.histories import PointVerdict
from pytest_flashinfer_perf.extensions.bisect.pairs import PairSchedule
from pytest_flashinfer_perf.extensions.compare import sides

ANSWERS = {
    verdict.Verdict.SLOWER: PointVerdict.CHANGED,
    verdict.Verdict.SAME: PointVerdict.UNCHANGED,
    verdict.Verdict.FASTER: PointVerdict.UNCHANGED,  # a change in the other direction is not searched for
}
SIGNS: Mapping[str, Literal[1, -1]] = {"slower": 1, "faster": -1}
SIDES: tuple[Side, Side] = ("base", "head")
ON_HOST = {"host": "slower to enqueue", "plan": "slower to plan"}


# Measures these cases, or all, at one point in a new process; raises PointError.
Comparing = Callable[[Question, Side, int, Iterable[str] | None], Run]


@dataclass(frozen=True)
class Times:
    """Compares two points by time. `sign` is 1 to search for slower, -1 for faster, which swaps base and head."""

    instrument: Comparing
    rules: verdict.Rules
    save_verdicts: Callable[[Question, verdict.Judgement], None]
    sign: Literal[1, -1] = 1
    pairs: int = 5
    most_pairs: int = 10

    def __call__(self, question: Question) -> Mapping[str, CaseFinding]:
        rules = self.rules
        if question.levels:  # instead of the settings file's thresholds, and without an absolute floor
            of_figure = {name: one.slower for one in rules.quantities for name in one.names}
            limit = of_figure[rules.quantity] if rules.quantity else "slower"
            levels = question.levels.items()
            entries = ((escape(case), {limit: math.expm1(level), "floor_us": 0.0}) for case, level in levels)
            rules = replace(rules, thresholds=thresholds.Thresholds(tuple(entries)))
        schedule = PairSchedule(self.pairs, self.most_pairs)
        try:
            judgement = schedule.follow(lambda nth, cases: self._pair(question, nth, cases), rules)
        except PointError as error:
            return skipped(question, error)
        self.save_verdicts(question, judgement)
        findings = {judged.name: self._finding(judged) for judged in judgement.cases}
        absent = CaseFinding(PointVerdict.SKIP, "not measured on either side")
        return {**{case: replace(absent, test=test) for case, test in question.tests.items()}, **findings}

    def _pair(self, question: Question, nth: int, cases: frozenset[str] | None) -> tuple[Run, Run]:
        wanted = cases if cases is not None else question.tests or None
        base, head = sides.Pairs(SIDES, lambda side, nth, _: self.instrument(question, side, nth, wanted))(nth)
        return (base, head) if self.sign == 1 else (head, base)

    def _finding(self, judged: verdict.Judged) -> CaseFinding:
        answer = ANSWERS.get(judged.verdict, PointVerdict.SKIP)
        case = judged.case if self.sign == 1 else replace(judged.case, base=judged.case.head, head=judged.case.base)
        test = case.rows[0].fullname if case.rows else ""
        if judged.primary is None or judged.threshold is None:
            return CaseFinding(answer, f"{judged.verdict.value}: {judged.reason}: {judged.sentence}", test)
        change = self.sign * judged.primary.change
        sure = self.sign * judged.primary.bound(-1) if answer is PointVerdict.CHANGED else None
        shown = replace(judged, case=case, effects=tuple(map(self._in_order, judged.effects)))
        sentence = f"{words.times(shown)}: {judged.primary.replicates.domain} {words.percent(change)}"
        if answer is PointVerdict.SKIP:
            sentence = f"{sentence}; {judged.verdict.value}: {judged.reason}: {judged.sentence}"
        return CaseFinding(answer, sentence, test, change, sure, judged.threshold, tuple(_others(shown)))

    def _in_order(self, effect: effects.Effect) -> effects.Effect:
        """The effect with the older point's values before the newer one's."""
        if self.sign == 1:
            return effect
        sides = effect.replicates
        return replace(effect, replicates=replace(sides, before=sides.after, after=sides.before))


def _others(judged: verdict.Judged) -> Iterable[str]:
    """The other differences between the sides: kernels, clock, the chosen backend, libraries."""
    yield from words.remarks(judged)
    before, after = _backends(judged.case.before), _backends(judged.case.after)
    if before != after:
        yield f"backend {before} -> {after}"
    sides = [[run for run, _ in side] for side in (judged.case.base, judged.case.head)]
    yield from match.changed_libraries(*sides)


def _backends(rows: Iterable[Row]) -> str:
    return " and ".join(dict.fromkeys(str(row.setup.resolved_backend or "unknown") for row in rows))


# Bisect wrong answers: check the answers at each revision by itself, in two processes that must agree.

PROCESSES = 2
WRONG_ANSWER = "wrong answer: "


@dataclass(frozen=True)
class CheckedAnswer:
    """Whether a case's answer is right; `right` is None if it was not checked or the processes disagree."""

    right: bool | None
    sentence: str
    test: str = ""


@dataclass
class Answers:
    """Compares two revisions by their answers. Each revision is checked once, since that needs no other revision."""

    instrument: Comparing
    answers: dict[tuple[str, str], CheckedAnswer] = field(default_factory=dict)

    def __call__(self, question: Question) -> Mapping[str, CaseFinding]:
        try:
            for side in ("base", "head"):
                self._look(question, side)
        except PointError as error:
            return skipped(question, error)
        cases = question.tests or dict.fromkeys(case for _, case in self.answers)
        return {case: self._finding(question, case) for case in cases}

    def _look(self, question: Question, side: Side) -> None:
        point = question.point(side)
        missing = [case for case in question.tests if (point, case) not in self.answers]
        if question.tests and not missing:
            return
        runs = [self.instrument(question, side, nth, missing or None) for nth in range(PROCESSES)]
        measured = (case for run in runs for case in (*run.by_case, *(one.case for one in run.unmeasured)))
        for case in missing or dict.fromkeys(measured):
            checked = [_checked_answer(run, case) for run in runs]
            self.answers[point, case] = checked[0]
            if len({one.right for one in checked}) > 1:
                each = "; ".join(one.sentence for one in checked)
                self.answers[point, case] = CheckedAnswer(None, f"not the same in {PROCESSES} processes: {each}")

    def _finding(self, question: Question, case: str) -> CaseFinding:
        unknown = CheckedAnswer(None, "not measured")
        base, head = (self.answers.get((point, case), unknown) for point in (question.base, question.head))
        if not base.right:
            return CaseFinding(PointVerdict.SKIP, f"not right to begin with: {base.sentence}", base.test)
        answer = {True: PointVerdict.UNCHANGED, False: PointVerdict.CHANGED, None: PointVerdict.SKIP}[head.right]
        return CaseFinding(answer, head.sentence, base.test)


def _checked_answer(run: Run, case: str) -> CheckedAnswer:
    row = run.by_case.get(case)
    if row is None:
        ended = run.ended([case])
        outcome, reason = (ended.outcome, ended.headline) if ended else ("not measured", "this run has nothing on it")
        wrong = WRONG_ANSWER in reason
        return CheckedAnswer(False if wrong else None, reason if wrong else f"{outcome}: {reason}")
    refcheck = row.check.refcheck
    right = {"passed": True, "wrong": False}.get(str(refcheck))
    sentence = {True: "right", False: "wrong answer", None: f"its answer is not compared: {refcheck}"}[right]
    return CheckedAnswer(right, sentence, row.fullname)
