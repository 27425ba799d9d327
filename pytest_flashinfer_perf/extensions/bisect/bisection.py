"""The search: compare both ends, bisect between them, then verify each suspect against its parents.

A point is a commit or a release; the base of a comparison is the older point, the head the newer one. The search asks
a `Question` at a time and gets a finding for each case; cases that want the same point next are measured together.
How a question is answered is left to `comparing.py`, which point comes next to `histories.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from pytest_flashinfer_perf.api import run_file
from pytest_flashinfer_perf.extensions.bisect.histories import History, Next, PointVerdict

RESULT = "result.json"  # in the folder of a search

Stage = Literal["ends", "search", "verify"]
Side = Literal["base", "head"]


@dataclass(frozen=True)
class Question:
    """Did these cases change between two points?

    `tests` has the id of each case's test; empty for all cases. `levels` has the smallest change that counts, as a
    logarithm of a ratio, for cases in which it differs from the settings file's.
    """

    number: int
    stage: Stage
    base: str
    head: str
    tests: Mapping[str, str] = field(default_factory=dict)
    levels: Mapping[str, float] = field(default_factory=dict)

    def point(self, side: Side) -> str:
        return self.base if side == "base" else self.head

    @property
    def folder(self) -> str:
        return f"{self.number:02}-{self.stage}"


@dataclass(frozen=True)
class CaseFinding:
    """One case's head compared with its base, with evidence for people.

    `change` is the change, `surely` its lower bound with 95 % confidence, `level` the smallest change that counts; all
    are logarithms of ratios.
    """

    answer: PointVerdict
    sentence: str
    test: str = ""
    change: float | None = None
    surely: float | None = None
    level: float = 0.0
    facts: tuple[str, ...] = ()

    @property
    def half(self) -> float:
        """A point between the ends counts as changed if it has more than this of the change between them."""
        return max(self.level, abs(self.change or 0.0) / 2)


# Measures and compares two points; returns a finding for each case of the question.
Compare = Callable[[Question], Mapping[str, CaseFinding]]


class PointError(run_file.RunError):
    """This point could not be measured: it does not build, or its tests do not run."""

    def __init__(self, point: str, reason: object) -> None:
        super().__init__(str(reason))
        self.point = point


def skipped(question: Question, error: PointError) -> dict[str, CaseFinding]:
    """Findings for a point that cannot be measured; raises the error if the search needs that point."""
    if question.stage == "ends" or (question.stage == "search" and error.point == question.base):
        raise error
    sentence = str(error).partition("\n")[0]
    return {case: CaseFinding(PointVerdict.SKIP, sentence, test) for case, test in question.tests.items()}


TRIES = 3  # how many suspects of a case may turn out to be equal to their parents


class NoDifferenceError(run_file.RunError):
    """The ends surely differ in no case, so that there is nothing to search for."""


@dataclass
class CaseSearch:
    """The state of the search for one case. `cleared` are suspects that did not differ from their parents."""

    case: str
    ends: CaseFinding
    answers: dict[str, PointVerdict] = field(default_factory=dict)
    cleared: list[tuple[str, CaseFinding]] = field(default_factory=list)
    suspects: tuple[str, ...] = ()
    verified: CaseFinding | None = None

    @property
    def searched(self) -> bool:
        """False if it is unclear whether the ends differ."""
        return self.ends.answer is PointVerdict.CHANGED

    @property
    def open(self) -> bool:
        return self.searched and self.verified is None and len(self.cleared) < TRIES

    @property
    def is_located(self) -> bool:
        return self.verified is not None and len(self.suspects) == 1

    def clear(self, suspect: str, parents: Sequence[str], finding: CaseFinding) -> None:
        """Drop the suspect. It equals a parent, so one of their answers was wrong: both will be measured again."""
        self.cleared.append((suspect, finding))
        for point in (suspect, *parents):
            self.answers.pop(point, None)


@dataclass
class RevisionSearch:
    history: History
    compare: Compare
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def run(self) -> list[CaseSearch]:
        trails = self._trails()
        while going := [trail for trail in trails if trail.open]:
            wanted: dict[Next, list[CaseSearch]] = {}
            for trail in going:
                wanted.setdefault(self.history.next(trail.answers), []).append(trail)
            # The point that most cases need; suspects are verified once no case needs a point.
            chosen = max(wanted, key=lambda one: (one.point is not None, len(wanted[one])))
            if chosen.point is None:
                self._verify(chosen.suspects, wanted[chosen])
                continue
            findings = self._ask("search", self.history.good, chosen.point, wanted[chosen])
            for trail in wanted[chosen]:
                trail.answers[chosen.point] = findings[trail.case].answer
        return trails

    def _trails(self) -> list[CaseSearch]:
        ends = self._ask("ends", self.history.good, self.history.bad)
        differ = [case for case in sorted(ends) if ends[case].answer is not PointVerdict.UNCHANGED]
        trails = [CaseSearch(case, ends[case]) for case in differ]
        if not any(trail.searched for trail in trails):
            listed = "\n".join(f"  {case}: {finding.sentence}" for case, finding in ends.items())
            outcome = "it is unclear whether the ends differ" if trails else "the ends do not differ"
            raise NoDifferenceError(f"{outcome} in what is searched for:\n{listed or '  no case'}")
        return trails

    def _verify(self, suspects: tuple[str, ...], trails: Sequence[CaseSearch]) -> None:
        """A suspect is confirmed only if it differs from each of its parents."""
        suspect, parents = suspects[-1], self.history.parents(suspects)
        of_each_parent = [self._beside(parent, suspect, trails) for parent in parents]
        for trail in trails:
            findings = [of_parent[trail.case] for of_parent in of_each_parent]
            innocent = next((finding for finding in findings if finding.answer is not PointVerdict.CHANGED), None)
            trail.suspects = suspects
            if innocent is None:
                trail.verified = findings[0]
            else:
                trail.clear(suspect, parents, innocent)

    def _beside(self, parent: str, suspect: str, trails: Sequence[CaseSearch]) -> Mapping[str, CaseFinding]:
        if (parent, suspect) == (self.history.good, self.history.bad):
            return {trail.case: trail.ends for trail in trails}
        return self._ask("verify", parent, suspect, trails)

    def _ask(self, stage: Stage, base: str, head: str, trails: Sequence[CaseSearch] = ()) -> Mapping[str, CaseFinding]:
        tests = {trail.case: trail.ends.test for trail in trails}
        levels = {trail.case: trail.ends.half for trail in trails} if stage == "search" else {}
        return self.compare(Question(next(self._numbers), stage, base, head, tests, levels))
