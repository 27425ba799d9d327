"""Record each comparison of a search in a file, so that an interrupted search can be resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_flashinfer_perf.bisect.question import Compare, Finding, Question
from pytest_flashinfer_perf.files import FileError, read_json, write_json
from pytest_flashinfer_perf.runs import fields
from pytest_flashinfer_perf.runs.fields import FieldError
from pytest_flashinfer_perf.runs.run_file import RunError

COMMAND, FINDINGS = "bisect.json", "findings.json"


@dataclass(frozen=True)
class Entry:
    """A question, the finding for each case, and how long that took."""

    number: int
    stage: str
    base: str
    head: str
    seconds: float
    cases: Mapping[str, Finding]

    def answers(self, question: Question) -> bool:
        asked = (question.number, question.stage, question.base, question.head)
        return asked == (self.number, self.stage, self.base, self.head)


@dataclass
class Journal:
    """Returns recorded findings as long as the file has some, then compares and records."""

    path: Path
    compare: Compare
    entries: list[Entry] = field(default_factory=list)
    asked: int = 0

    def __call__(self, question: Question) -> Mapping[str, Finding]:
        self.asked += 1
        if self.asked <= len(self.entries):
            return self._recorded(self.entries[self.asked - 1], question)
        start = time.monotonic()
        found = dict(self.compare(question))
        known = (question.number, question.stage, question.base, question.head)
        self.entries.append(Entry(*known, time.monotonic() - start, found))
        write_json(self.path, fields.written(self.entries))
        return found

    def _recorded(self, entry: Entry, question: Question) -> Mapping[str, Finding]:
        if not entry.answers(question):
            raise RunError(f"{self.path}: question {question.number} is another one there: start a new search")
        return entry.cases

    @property
    def seconds(self) -> Sequence[float]:
        return [entry.seconds for entry in self.entries]


def read(path: Path, compare: Compare) -> Journal:
    """The journal in this file, or an empty one if there is no such file."""
    if not path.exists():
        return Journal(path, compare)
    try:
        entries = fields.read_list(Entry, read_json(path), "it")
    except (FileError, FieldError) as error:
        raise RunError(f"{path}: no findings of a search: {error}") from error
    return Journal(path, compare, entries)
