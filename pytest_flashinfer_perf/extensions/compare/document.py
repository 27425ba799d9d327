"""The comparison as data, written as JSON: every verdict with the numbers that led to it.

Equal inputs give equal files. Other forms of the comparison are made of a `VerdictsDocument`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.api import Row, Run, effects, fields, verdict, words

SCHEMA = 1


@dataclass(frozen=True)
class RunEntry:
    source: str
    when: str
    commit: str | None


@dataclass(frozen=True)
class SumEntry:
    """A sum over cases. The names of its fields are those of the sums that came first."""

    model: str
    line: str
    subject: str
    is_traffic: bool  # it is told before all cases
    sentence: str
    worse: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class NoiseEntry:
    sd: float
    df: float
    source: str


@dataclass(frozen=True)
class EffectEntry:
    """Changes, errors and bounds are logarithms of ratios."""

    change: float
    error: float
    lower: float
    upper: float
    p_slower: float
    p_faster: float
    significant: int
    before: tuple[float, ...]
    after: tuple[float, ...]
    noise: NoiseEntry


@dataclass(frozen=True)
class CaseEntry:
    case: str
    verdict: verdict.Verdict
    reason: str
    sentence: str
    time: str
    change: str
    detects: str
    bound: str | None
    judged_in: str | None
    threshold: float | None
    detectable: float | None
    remarks: tuple[str, ...]
    broken: tuple[str, ...]
    admitted: bool
    before_s: tuple[float | None, ...]
    after_s: tuple[float | None, ...]
    effects: Mapping[str, EffectEntry]


@dataclass(frozen=True)
class VerdictsDocument:
    """All that is said of a comparison."""

    flashinfer_perf_gate: int
    exit_code: int
    headline: str
    against: str
    refusals: tuple[str, ...]
    notes: tuple[str, ...]
    paired: bool
    allowed: tuple[str, ...]
    base: tuple[RunEntry, ...]
    head: tuple[RunEntry, ...]
    steps: tuple[SumEntry, ...]
    cases: tuple[CaseEntry, ...]


def text(judgement: verdict.Judgement) -> str:
    return json.dumps(fields.written(of(judgement)), indent=1) + "\n"


def of(judgement: verdict.Judgement) -> VerdictsDocument:
    return VerdictsDocument(
        flashinfer_perf_gate=SCHEMA,
        exit_code=judgement.exit_code,
        headline=words.headline(judgement),
        against=words.against(judgement),
        refusals=tuple(words.problems(judgement)),
        notes=tuple(words.notes(judgement)),
        paired=judgement.rules.paired,
        allowed=tuple(sorted(judgement.rules.allowed)),
        base=_runs(judgement.base),
        head=_runs(judgement.head),
        steps=tuple(map(_sum, judgement.sums)),
        cases=tuple(map(_case, judgement.cases)),
    )


def _runs(runs: Sequence[Run]) -> tuple[RunEntry, ...]:
    return tuple(RunEntry(run.source, run.when.isoformat(), run.commit.id) for run in runs)


def _sum(one: verdict.RunSum) -> SumEntry:
    return SumEntry(one.name, one.line, one.subject, one.leads, one.sentence, one.worse, one.unknown)


def _case(judged: verdict.Judged) -> CaseEntry:
    return CaseEntry(
        case=judged.name,
        verdict=judged.verdict,
        reason=str(judged.reason),
        sentence=judged.sentence,
        time=words.times(judged),
        change=words.changes(judged),
        detects=words.detectable(judged),
        bound=judged.case.rows[0].throughput.bound if judged.case.rows else None,
        judged_in=str(judged.primary.replicates.domain) if judged.primary else None,
        threshold=judged.threshold,
        detectable=judged.detectable,
        remarks=tuple(words.remarks(judged)),
        broken=tuple(broken.sentence for broken in judged.broken if not broken.unknown),
        admitted=judged.admitted,
        before_s=_medians(judged.case.before),
        after_s=_medians(judged.case.after),
        effects={str(effect.replicates.domain): _effect(effect) for effect in judged.effects},
    )


def _medians(rows: Sequence[Row]) -> tuple[float | None, ...]:
    """JSON has no word for what is not finite."""
    return tuple(row.median if math.isfinite(row.median) else None for row in rows)


def _effect(effect: effects.Effect) -> EffectEntry:
    return EffectEntry(
        change=effect.change,
        error=effect.error,
        lower=effect.bound(-1),
        upper=effect.bound(1),
        p_slower=effect.p(1),
        p_faster=effect.p(-1),
        significant=effect.significant,
        before=effect.replicates.before,
        after=effect.replicates.after,
        noise=NoiseEntry(effect.noise.sd, effect.noise.df, effect.noise.source),
    )
