"""The outcome of one example, and a finding's description: the commands that reproduce it, and its file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_flashinfer_perf.api import file_io
from pytest_flashinfer_perf.extensions.fuzz.fuzzing import KEY
from pytest_flashinfer_perf.spec import flags
from pytest_flashinfer_perf.spec.case import Case

SCHEMA = 1


@dataclass(frozen=True)
class Finding:
    """The content of a finding's file."""

    kind: str
    sentence: str
    case: str
    line: list[str]
    pytest: str
    upstream: str | None
    log: str
    steady: bool
    versions: Mapping[str, Any]

    @property
    def lines(self) -> list[str]:
        unsteady = "" if self.steady else ", not every time"
        return [
            f"{self.kind}{unsteady}: {self.sentence}",
            self.pytest,
            *([self.upstream] if self.upstream else []),
            *(f"  | {line}" for line in self.log.splitlines()),
        ]

    def write(self, folder: Path) -> Path:
        routine, _, shape = self.case.partition("/")
        unique = hashlib.sha256(flags.join(self.line).encode()).hexdigest()[:8]
        path = folder / f"{routine}-{shape[:80]}-{self.kind}-{unique}.json"
        file_io.write_json(path, {KEY: SCHEMA, **asdict(self)})
        return path


def describe(
    case: Case, outcome: Outcome, versions: Mapping[str, Any], *, steady: bool, upstream: str | None = None
) -> Finding:
    return Finding(
        kind=outcome.kind,
        sentence=outcome.sentence,
        case=f"{case.routine.name}/{case.id}",
        line=case.words,
        pytest=flags.join(["pytest", "--perf-fuzz", f"--perf-case={flags.join(case.words)}"]),
        upstream=upstream,
        log=outcome.log,
        steady=steady,
        versions={name: version for name, version in versions.items() if version is not None},
    )


def line_of(path: Path) -> list[str]:
    """The flags of a finding's case."""
    document = file_io.read_json(path)
    schema = document.get(KEY) if isinstance(document, dict) else None
    if schema != SCHEMA or not isinstance(document.get("line"), list):
        raise ValueError(f"must be a finding of schema {SCHEMA} with a line, got schema {schema!r}")
    return [str(word) for word in document["line"]]


Kind = Literal["right", "skipped", "refused", "wrong", "failed", "crashed", "hung", "broken"]
FINDINGS: Sequence[Kind] = ("wrong", "failed", "crashed", "hung", "broken")


@dataclass(frozen=True)
class Outcome:
    """`skipped`: known limits of the backend; `refused`: a documented error of the library; `failed`: another error;
    `crashed`: the process died; `hung`: no answer in time; `broken`: an error in our inputs or reference.
    """

    kind: Kind
    sentence: str = ""
    log: str = ""

    @property
    def is_finding(self) -> bool:
        return self.kind in FINDINGS
