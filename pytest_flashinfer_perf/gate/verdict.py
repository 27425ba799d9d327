"""Verdicts, the data behind each, and the exit code of all of them.

A judgement is a value: `judge.py` makes it once from two sides and the rules, and all that shows it reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from pytest_flashinfer_perf.gate import thresholds
from pytest_flashinfer_perf.gate.effects import Effect, Replicates
from pytest_flashinfer_perf.gate.match import NEVER_ALLOWED, ComparedCase
from pytest_flashinfer_perf.gate.thresholds import Broken, Globs, Threshold, Thresholds
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run
from pytest_flashinfer_perf.settings.project_file import ProjectFile

NOTHING_WORSE, WORSE, COULD_NOT_JUDGE = 0, 1, 2  # exit codes; of 1 and 2 it is 1


class Verdict(str, Enum):
    """The verdicts, the most important to a reader first."""

    SLOWER = "SLOWER"
    INVALID = "INVALID"
    MISSING = "MISSING"
    AMBIGUOUS = "AMBIGUOUS"
    FASTER = "FASTER"
    SAME = "SAME"
    NEW = "NEW"  # not in the baseline: listed, and held to absolutes

    @property
    def is_decided(self) -> bool:
        return self in (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME)

    @property
    def rank(self) -> int:
        return list(Verdict).index(self)


CHANGED = (Verdict.SLOWER, Verdict.FASTER)


@dataclass(frozen=True)
class Rules:
    """The settings of a comparison. Paired: the n-th processes of the two sides ran next to each other.

    Extensions add quantities of a case to judge by, and sums over cases with their sections of the settings file. If
    `quantity` is given, a figure of one of them, it alone decides every verdict.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    allowed: frozenset[str] = frozenset()
    strict: bool = False
    paired: bool = False
    quantity: str | None = None
    quantities: tuple[JudgedQuantity, ...] = ()
    sums: tuple[Summing, ...] = ()
    sections: Mapping[str, Globs] = field(default_factory=dict)  # of the sums


@dataclass(frozen=True)
class Judged:
    """A case, its verdict with reason code and sentence, and all that led to it.

    `threshold` and `detectable` are logarithms of ratios: the least change that counts, the least slowdown that is
    found 95 times in 100.
    The first of `effects` decided the verdict; `other_thresholds` are those of further effects. `remarks` are what
    extensions say of it.
    """

    case: ComparedCase
    verdict: Verdict
    reason: str
    sentence: str
    limits: Threshold
    threshold: float | None = None
    effects: tuple[Effect, ...] = ()
    detectable: float | None = None
    broken: tuple[Broken, ...] = ()
    admitted: bool = False
    other_thresholds: tuple[tuple[Effect, float], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def primary(self) -> Effect | None:
        return self.effects[0] if self.effects else None

    @property
    def size(self) -> float:
        return abs(self.primary.change) if self.primary else 0.0

    def effect_in(self, domain: str) -> Effect | None:
        return next((effect for effect in self.effects if effect.replicates.domain == domain), None)

    @property
    def compared(self) -> bool:
        return bool(self.effects)

    @property
    def worse(self) -> bool:
        breaks = any(not broken.unknown for broken in self.broken)
        return self.verdict is Verdict.SLOWER or self.reason in NEVER_ALLOWED or breaks

    @property
    def unjudged(self) -> bool:
        return self.verdict in (Verdict.MISSING, Verdict.INVALID) and not self.admitted


class ComparedFigure(Protocol):
    """A figure of a `JudgedQuantity`, which rows of both sides may have."""

    def replicates(self, before: Sequence[Row], after: Sequence[Row], *, paired: bool) -> Replicates | None:
        """The figure of each process of both sides; None where a row lacks it."""


class JudgedQuantity(Protocol):
    """A quantity of an extension (`quantity.py`)."""

    @property
    def limits(self) -> type: ...
    @property
    def slower(self) -> str: ...
    @property
    def figures(self) -> tuple[ComparedFigure, ...]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def broken(self) -> Callable[[ComparedCase, Any], Iterable[Broken]]: ...
    def judged(self, sound: Sequence[Judged], rules: Rules, /) -> Mapping[str, Judged]: ...
    def alone(self, judged: Judged, name: str, cases: int) -> Judged: ...


@dataclass(frozen=True)
class RunSum:
    """A sum over cases: its time and change in a sentence, exceeded limits, and what cannot be judged."""

    name: str
    subject: str
    sentence: str
    worse: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    leads: bool = False  # it is told before all cases, others after them

    @property
    def verdict(self) -> str:
        """Empty for a sum within its limits, or without limits."""
        return "WORSE" if self.worse else "INVALID" if self.unknown else ""

    @property
    def line(self) -> str:
        beside = f"{self.verdict} " if self.verdict else ""
        return f"{beside}{self.subject}: {'; '.join([self.sentence, *self.worse, *self.unknown])}"


@dataclass(frozen=True)
class Summing:
    """A sum of cases that an extension judges, by the verdicts of all cases.

    `sections` are those of the settings file that limit such sums, each with the dataclass that declares the limits.
    `judged` gives the sums, and notes for the whole comparison.
    """

    sections: Mapping[str, type]
    judged: Callable[[Sequence[Judged], Sequence[Run], Mapping[str, Globs]], tuple[Sequence[RunSum], Sequence[str]]]


@dataclass(frozen=True)
class Judgement:
    """The result of a comparison. `failures` are failed tests of the head that belong to no known case."""

    cases: tuple[Judged, ...]
    base: tuple[Run, ...]
    head: tuple[Run, ...]
    rules: Rules
    refusals: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    sums: tuple[RunSum, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> Counter[Verdict]:
        return Counter(judged.verdict for judged in self.cases)

    @property
    def nothing(self) -> bool:
        return not any(judged.compared for judged in self.cases)

    @property
    def decided(self) -> int:
        """The number of cases that could be judged; NEW ones are left out of account."""
        return sum(judged.verdict.is_decided for judged in self.cases)

    @property
    def exit_code(self) -> int:
        if self.failures or any(judged.worse for judged in self.cases) or any(one.worse for one in self.sums):
            return WORSE
        undecided = self.rules.strict and self.counts[Verdict.AMBIGUOUS] > 0
        unjudged = any(judged.unjudged for judged in self.cases) or any(one.unknown for one in self.sums)
        return COULD_NOT_JUDGE if self.refusals or not self.decided or unjudged or undecided else NOTHING_WORSE

    def having(self, verdict: Verdict) -> list[Judged]:
        return [judged for judged in self.cases if judged.verdict is verdict]


# The rules, as the settings file and the extensions have them: of the hooks of a session, or of a command.


def _added(hook: Any) -> Rules:
    """The quantities and sums that extensions declare, as rules without limits."""
    quantities, sums = hook.pytest_perf_quantities(), hook.pytest_perf_sums()
    return Rules(
        quantities=tuple(one for of_one in reversed(quantities) for one in of_one),
        sums=tuple(one for of_one in reversed(sums) for one in of_one),
    )


def read_rules(project: ProjectFile, hook: Any) -> Rules:
    """All limits of the settings file; raises ProjectFileError for one that nobody declares."""
    rules = _added(hook)
    sections = {name: kind for one in rules.sums for name, kind in one.sections.items()}
    project.verify(sections)
    return replace(
        rules,
        thresholds=thresholds.read(project, [one.limits for one in rules.quantities]),
        sections={name: Globs(tuple(thresholds.entries(project, name, [kind]))) for name, kind in sections.items()},
    )
