"""A comparison that the search asks for, and its finding for each case.

A point is a commit or a release. The base of a comparison is the older point, the head the newer one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Literal, Protocol

from pytest_flashinfer_perf.files import FileError, read_json, write_json
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.fields import FieldError
from pytest_flashinfer_perf.rows.run_file import RunError

Stage = Literal["ends", "step", "verify"]
Side = Literal["base", "head"]


class Comparison(IntEnum):
    """Did the case change? The values are the exit codes of `git bisect run`."""

    UNCHANGED = 0
    CHANGED = 1
    SKIP = 125


GIT_WORDS = {Comparison.UNCHANGED: "good", Comparison.CHANGED: "bad", Comparison.SKIP: "skip"}


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

    answer: Comparison
    sentence: str
    test: str = ""
    change: float | None = None
    surely: float | None = None
    level: float = 0.0
    facts: tuple[str, ...] = ()


class Compare(Protocol):
    """Measures and compares two points; returns a finding for each case of the question."""

    def __call__(self, question: Question) -> Mapping[str, CaseFinding]: ...


class PointError(RunError):
    """This point could not be measured: it does not build, or its tests do not run."""

    def __init__(self, point: str, reason: object) -> None:
        super().__init__(str(reason))
        self.point = point


def skipped(question: Question, error: PointError) -> dict[str, CaseFinding]:
    """Findings for a point that cannot be measured; raises the error if the search needs that point."""
    if question.stage == "ends" or (question.stage == "step" and error.point == question.base):
        raise error
    sentence = str(error).partition("\n")[0]
    return {case: CaseFinding(Comparison.SKIP, sentence, test) for case, test in question.tests.items()}


# Record each comparison of a search in a file, so that an interrupted search can be resumed.

COMMAND, FINDINGS = "bisect.json", "findings.json"


@dataclass(frozen=True)
class Entry:
    """A question, the finding for each case, and how long that took."""

    number: int
    stage: str
    base: str
    head: str
    seconds: float
    cases: Mapping[str, CaseFinding]

    def answers(self, question: Question) -> bool:
        asked = (question.number, question.stage, question.base, question.head)
        return asked == (self.number, self.stage, self.base, self.head)


@dataclass
class SearchJournal:
    """Returns recorded findings as long as the file has some, then compares and records."""

    path: Path
    compare: Compare
    entries: list[Entry] = field(default_factory=list)
    asked: int = 0

    def __call__(self, question: Question) -> Mapping[str, CaseFinding]:
        self.asked += 1
        if self.asked <= len(self.entries):
            return self._recorded(self.entries[self.asked - 1], question)
        start = time.monotonic()
        found = dict(self.compare(question))
        known = (question.number, question.stage, question.base, question.head)
        self.entries.append(Entry(*known, time.monotonic() - start, found))
        write_json(self.path, fields.written(self.entries))
        return found

    def _recorded(self, entry: Entry, question: Question) -> Mapping[str, CaseFinding]:
        if not entry.answers(question):
            raise RunError(f"{self.path}: question {question.number} is another one there: start a new search")
        return entry.cases

    @property
    def seconds(self) -> Sequence[float]:
        return [entry.seconds for entry in self.entries]


def read(path: Path, compare: Compare) -> SearchJournal:
    """The journal in this file, or an empty one if there is no such file."""
    if not path.exists():
        return SearchJournal(path, compare)
    try:
        entries = fields.read_list(Entry, read_json(path), "it")
    except (FileError, FieldError) as error:
        raise RunError(f"{path}: no findings of a search: {error}") from error
    return SearchJournal(path, compare, entries)
