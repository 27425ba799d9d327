"""Bisect wrong answers: check the answers at each revision by itself, in two processes that must agree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_flashinfer_perf.bisect.question import Answer, Finding, PointError, Question, Side, skipped
from pytest_flashinfer_perf.bisect.times import Instrument
from pytest_flashinfer_perf.runs.run_file import Run

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

    instrument: Instrument
    known: dict[tuple[str, str], CheckedAnswer] = field(default_factory=dict)

    def __call__(self, question: Question) -> Mapping[str, Finding]:
        try:
            for side in ("base", "head"):
                self._look(question, side)
        except PointError as error:
            return skipped(question, error)
        cases = question.tests or dict.fromkeys(case for _, case in self.known)
        return {case: self._finding(question, case) for case in cases}

    def _look(self, question: Question, side: Side) -> None:
        point = question.point(side)
        missing = [case for case in question.tests if (point, case) not in self.known]
        if question.tests and not missing:
            return
        runs = [self.instrument(question, side, nth, missing or None) for nth in range(PROCESSES)]
        for case in missing or _cases(runs):
            self.known[point, case] = _agreed([_seen(run, case) for run in runs])

    def _finding(self, question: Question, case: str) -> Finding:
        unknown = CheckedAnswer(None, "not measured")
        base, head = (self.known.get((point, case), unknown) for point in (question.base, question.head))
        if not base.right:
            return Finding(Answer.SKIP, f"not right to begin with: {base.sentence}", base.test)
        answer = {True: Answer.UNCHANGED, False: Answer.CHANGED, None: Answer.SKIP}[head.right]
        return Finding(answer, head.sentence, base.test)


def _cases(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(case for run in runs for case in (*run.by_case, *(one.case for one in run.unmeasured))))


def _seen(run: Run, case: str) -> CheckedAnswer:
    row = run.by_case.get(case)
    if row is None:
        ended = run.ended([case])
        outcome, reason = (ended.outcome, ended.headline) if ended else ("not measured", "this run has nothing on it")
        wrong = WRONG_ANSWER in reason
        return CheckedAnswer(False if wrong else None, reason if wrong else f"{outcome}: {reason}")
    checked = row.check.refcheck
    right = {"passed": True, "wrong": False}.get(str(checked))
    sentence = {True: "right", False: "wrong answer", None: f"its answer is not compared: {checked}"}[right]
    return CheckedAnswer(right, sentence, row.fullname)


def _agreed(seen: list[CheckedAnswer]) -> CheckedAnswer:
    if len({one.right for one in seen}) > 1:
        return CheckedAnswer(None, f"not the same in {PROCESSES} processes: {'; '.join(one.sentence for one in seen)}")
    return seen[0]
