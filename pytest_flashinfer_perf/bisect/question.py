"""What a search asks of two points of a history, and what it is answered with for each case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, Protocol

from pytest_flashinfer_perf.runs.run_file import RunError

Stage = Literal["ends", "step", "verify"]
Side = Literal["base", "head"]


class Answer(IntEnum):
    """The exit codes that `git bisect run` knows."""

    UNCHANGED = 0
    CHANGED = 1
    SKIP = 125


GIT_WORDS = {Answer.UNCHANGED: "good", Answer.CHANGED: "bad", Answer.SKIP: "skip"}


@dataclass(frozen=True)
class Question:
    """Did these cases change between two points? All cases where none are named.

    `tests` are the ids of tests by case; `levels` the least change that counts, as a logarithm, where it is not that
    of the settings file.
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
    """Of one case, in its head as compared with its base; `change`, `surely` and `level` are logarithms of ratios."""

    answer: Answer
    sentence: str
    test: str = ""
    change: float | None = None
    surely: float | None = None
    level: float = 0.0
    facts: tuple[str, ...] = ()


class Compare(Protocol):
    """Findings by case; of all cases that were asked for."""

    def __call__(self, question: Question) -> Mapping[str, Finding]: ...


class PointError(RunError):
    """This point of the history could not be measured: it does not build, or its tests do not run."""

    def __init__(self, point: str, reason: object) -> None:
        super().__init__(str(reason))
        self.point = point


def skipped(question: Question, error: PointError) -> dict[str, Finding]:
    """Where it is the point in question that cannot be measured; else it is an error of the whole search."""
    if question.stage == "ends" or (question.stage == "step" and error.point == question.base):
        raise error
    sentence = str(error).partition("\n")[0]
    return {case: Finding(Answer.SKIP, sentence, test) for case, test in question.tests.items()}
