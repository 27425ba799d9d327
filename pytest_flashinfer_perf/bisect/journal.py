"""Record each comparison of a search in a file, so that an interrupted search can be resumed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.bisect.question import Answer, Compare, Finding, Question
from pytest_flashinfer_perf.files import FileError, read_json, write_json
from pytest_flashinfer_perf.runs.run_file import RunError

COMMAND, FINDINGS = "bisect.json", "findings.json"


@dataclass
class Journal:
    """Returns recorded findings as long as the file has some, then compares and records."""

    path: Path
    compare: Compare
    entries: list[dict[str, Any]] = field(default_factory=list)
    asked: int = 0

    def __call__(self, question: Question) -> Mapping[str, Finding]:
        self.asked += 1
        if self.asked <= len(self.entries):
            return self._recorded(self.entries[self.asked - 1], question)
        start = time.monotonic()
        found = dict(self.compare(question))
        seconds = time.monotonic() - start
        cases = {case: asdict(finding) for case, finding in found.items()}
        self.entries.append({**_identity(question), "seconds": seconds, "cases": cases})
        write_json(self.path, self.entries)
        return found

    def _recorded(self, entry: Mapping[str, Any], question: Question) -> Mapping[str, Finding]:
        if {name: entry[name] for name in _identity(question)} != _identity(question):
            raise RunError(f"{self.path}: question {question.number} is another one there: start a new search")
        return {case: _finding(document) for case, document in entry["cases"].items()}

    @property
    def seconds(self) -> Sequence[float]:
        return [entry["seconds"] for entry in self.entries]


def read(path: Path, compare: Compare) -> Journal:
    """The journal in this file, or an empty one if there is no such file."""
    if not path.exists():
        return Journal(path, compare)
    try:
        entries = read_json(path)
        for entry in entries:
            (entry["seconds"], [_finding(document) for document in entry["cases"].values()])
    except (FileError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: no findings of a search: {type(error).__name__}: {error}") from error
    return Journal(path, compare, entries)


def _finding(document: Mapping[str, Any]) -> Finding:
    return Finding(**{**document, "answer": Answer(document["answer"]), "facts": tuple(document["facts"])})


def _identity(question: Question) -> dict[str, Any]:
    return {"number": question.number, "stage": question.stage, "base": question.base, "head": question.head}
