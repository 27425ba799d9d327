"""A comparison that the search asks for, and its finding for each case.

A point is a commit or a release. The base of a comparison is the older point, the head the newer one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, Protocol

from pytest_flashinfer_perf.runs.run_file import RunError

Stage = Literal["ends", "step", "verify"]
Side = Literal["base", "head"]


class Answer(IntEnum):
    """Did the case change? The values are the exit codes of `git bisect run`."""

    UNCHANGED = 0
    CHANGED = 1
    SKIP = 125


GIT_WORDS = {Answer.UNCHANGED: "good", Answer.CHANGED: "bad", Answer.SKIP: "skip"}


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
class Finding:
    """One case's head compared with its base, with evidence for people.

    `change` is the change, `surely` its lower bound with 95 % confidence, `level` the smallest change that counts; all
    are logarithms of ratios.
    """

    answer: Answer
    sentence: str
    test: str = ""
    change: float | None = None
    surely: float | None = None
    level: float = 0.0
    facts: tuple[str, ...] = ()


class Compare(Protocol):
    """Measures and compares two points; returns a finding for each case of the question."""

    def __call__(self, question: Question) -> Mapping[str, Finding]: ...


class PointError(RunError):
    """This point could not be measured: it does not build, or its tests do not run."""

    def __init__(self, point: str, reason: object) -> None:
        super().__init__(str(reason))
        self.point = point


def skipped(question: Question, error: PointError) -> dict[str, Finding]:
    """Findings for a point that cannot be measured; raises the error if the search needs that point."""
    if question.stage == "ends" or (question.stage == "step" and error.point == question.base):
        raise error
    sentence = str(error).partition("\n")[0]
    return {case: Finding(Answer.SKIP, sentence, test) for case, test in question.tests.items()}
