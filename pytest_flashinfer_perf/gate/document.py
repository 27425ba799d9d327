"""The comparison as JSON: every verdict with the numbers that led to it. Equal inputs give equal files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pytest_flashinfer_perf.gate import advice, words
from pytest_flashinfer_perf.gate.effects import Effect
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement
from pytest_flashinfer_perf.runs.run_file import Run

SCHEMA = 1


def text(judgement: Judgement) -> str:
    return json.dumps(of(judgement), indent=1) + "\n"


def of(judgement: Judgement) -> dict[str, Any]:
    return {
        "flashinfer_perf_gate": SCHEMA,
        "exit_code": judgement.exit_code,
        "headline": words.headline(judgement),
        "refusals": list(words.problems(judgement)),
        "notes": list(words.notes(judgement)),
        "to_decide": advice.command(judgement) or None,
        "paired": judgement.rules.paired,
        "allowed": sorted(judgement.rules.allowed),
        "base": _runs(judgement.base),
        "head": _runs(judgement.head),
        "steps": [
            {"model": step.model, "sentence": step.sentence, "worse": list(step.worse), "unknown": list(step.unknown)}
            for step in judgement.steps
        ],
        "cases": [_case(judged) for judged in judgement.cases],
    }


def _runs(runs: Sequence[Run]) -> list[dict[str, Any]]:
    return [{"source": run.source, "when": run.when.isoformat(), "commit": run.commit.id} for run in runs]


def _case(judged: Judged) -> dict[str, Any]:
    return {
        "case": judged.name,
        "verdict": judged.verdict.value,
        "reason": judged.reason,
        "sentence": judged.sentence,
        "bound": judged.case.rows[0].throughput.bound if judged.case.rows else None,
        "judged_in": judged.primary.seen.domain if judged.primary else None,
        "threshold": judged.threshold,
        "detectable": judged.detectable,
        "remarks": list(words.remarks(judged)),
        "broken": [broken.sentence for broken in judged.broken if not broken.unknown],
        "admitted": judged.admitted,
        "before_s": [_finite(row.median) for row in judged.case.before],
        "after_s": [_finite(row.median) for row in judged.case.after],
        "effects": {effect.seen.domain: _effect(effect) for effect in judged.effects},
    }


def _finite(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None  # noqa: PLR0124 - NaN is not itself


def _effect(effect: Effect) -> dict[str, Any]:
    """Changes, errors and bounds are logarithms of ratios."""
    return {
        "change": effect.change,
        "error": effect.error,
        "lower": effect.bound(-1),
        "upper": effect.bound(1),
        "p_slower": effect.p(1),
        "p_faster": effect.p(-1),
        "significant": effect.significant,
        "before": list(effect.seen.before),
        "after": list(effect.seen.after),
        "noise": {"sd": effect.noise.sd, "df": effect.noise.df, "source": effect.noise.source},
    }
