"""The search: compare both ends, bisect between them, then verify each suspect against its parents.

Cases that want the same point next are measured together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from pytest_flashinfer_perf.bisect.question import CaseFinding, Compare, Comparison, Question, Stage
from pytest_flashinfer_perf.rows.run_file import RunError

HALF = 0.5  # a point counts as changed if it has more than this share of the change between the ends
TRIES = 3  # how many suspects of a case may turn out to be equal to their parents


class NoDifferenceError(RunError):
    """The ends surely differ in no case, so that there is nothing to search for."""


@dataclass(frozen=True)
class Next:
    """The next point to measure, or None and the remaining suspects, the last of which is known to be changed."""

    point: str | None
    suspects: tuple[str, ...] = ()


class History(Protocol):
    """The points between a good and a bad end, and which one to measure next."""

    @property
    def good(self) -> str: ...

    @property
    def bad(self) -> str: ...

    def next(self, answers: Mapping[str, Comparison]) -> Next: ...

    def parents(self, suspects: Sequence[str]) -> Sequence[str]:
        """The points directly before the suspects."""
        ...


@dataclass
class CaseSearch:
    """The state of the search for one case. `cleared` are suspects that did not differ from their parents."""

    case: str
    ends: CaseFinding
    answers: dict[str, Comparison] = field(default_factory=dict)
    cleared: list[tuple[str, CaseFinding]] = field(default_factory=list)
    suspects: tuple[str, ...] = ()
    verified: CaseFinding | None = None

    @property
    def searched(self) -> bool:
        """False if it is unclear whether the ends differ."""
        return self.ends.answer is Comparison.CHANGED

    @property
    def open(self) -> bool:
        return self.searched and self.verified is None and len(self.cleared) < TRIES

    @property
    def found(self) -> bool:
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
    started: Callable[[Sequence[CaseSearch]], None] = lambda _: None
    _numbers: count[int] = field(default_factory=lambda: count(1))

    def run(self) -> list[CaseSearch]:
        trails = self._trails()
        self.started(trails)
        while going := [trail for trail in trails if trail.open]:
            self._advance(going)
        return trails

    def _trails(self) -> list[CaseSearch]:
        ends = self._ask("ends", self.history.good, self.history.bad)
        trails = [
            CaseSearch(case, finding) for case, finding in ends.items() if finding.answer is not Comparison.UNCHANGED
        ]
        if not any(trail.searched for trail in trails):
            listed = "\n".join(f"  {case}: {finding.sentence}" for case, finding in ends.items())
            seen = "it is unclear whether the ends differ" if trails else "the ends do not differ"
            raise NoDifferenceError(f"{seen} in what is searched for:\n{listed or '  no case'}")
        return trails

    def _advance(self, going: Sequence[CaseSearch]) -> None:
        """Measure the point that most cases need next, or verify suspects once no case needs a point."""
        wanted: dict[Next, list[CaseSearch]] = {}
        for trail in going:
            wanted.setdefault(self.history.next(trail.answers), []).append(trail)
        next_one = max(wanted, key=lambda one: (one.point is not None, len(wanted[one])))
        if next_one.point is not None:
            self._look(next_one.point, wanted[next_one])
        else:
            self._verify(next_one.suspects, wanted[next_one])

    def _look(self, point: str, trails: Sequence[CaseSearch]) -> None:
        found = self._ask("step", self.history.good, point, trails)
        for trail in trails:
            trail.answers[point] = found[trail.case].answer

    def _verify(self, suspects: tuple[str, ...], trails: Sequence[CaseSearch]) -> None:
        """A suspect is confirmed only if it differs from each of its parents."""
        suspect, parents = suspects[-1], self.history.parents(suspects)
        seen = [self._beside(parent, suspect, trails) for parent in parents]
        for trail in trails:
            findings = [found[trail.case] for found in seen]
            innocent = next((finding for finding in findings if finding.answer is not Comparison.CHANGED), None)
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
        levels = {trail.case: _level(trail.ends) for trail in trails} if stage == "step" else {}
        return self.compare(Question(next(self._numbers), stage, base, head, tests, levels))


def _level(ends: CaseFinding) -> float:
    return max(ends.level, HALF * abs(ends.change or 0.0))
