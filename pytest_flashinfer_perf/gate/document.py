"""The comparison as JSON: every verdict with the numbers that led to it. Equal inputs give equal files."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.effects import Effect
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Verdict
from pytest_flashinfer_perf.printing import safe_lines
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run

SCHEMA = 1
OF_STEP = ("model", "line", "subject", "is_traffic", "sentence", "worse", "unknown")


def text(judgement: Judgement) -> str:
    return json.dumps(of(judgement), indent=1) + "\n"


def of(judgement: Judgement) -> dict[str, Any]:
    return {
        "flashinfer_perf_gate": SCHEMA,
        "exit_code": judgement.exit_code,
        "headline": words.headline(judgement),
        "against": words.against(judgement),
        "refusals": list(words.problems(judgement)),
        "notes": list(words.notes(judgement)),
        "to_decide": words.command(judgement) or None,
        "paired": judgement.rules.paired,
        "allowed": sorted(judgement.rules.allowed),
        "base": _runs(judgement.base),
        "head": _runs(judgement.head),
        "steps": [{name: getattr(step, name) for name in OF_STEP} for step in judgement.steps],
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
        "time": words.times(judged),
        "change": words.changes(judged),
        "detects": words.detectable(judged),
        "bound": judged.case.rows[0].throughput.bound if judged.case.rows else None,
        "judged_in": judged.primary.seen.domain if judged.primary else None,
        "threshold": judged.threshold,
        "detectable": judged.detectable,
        "remarks": list(words.remarks(judged)),
        "broken": [broken.sentence for broken in judged.broken if not broken.unknown],
        "admitted": judged.admitted,
        "before_s": _medians(judged.case.before),
        "after_s": _medians(judged.case.after),
        "effects": {effect.seen.domain: _effect(effect) for effect in judged.effects},
    }


def _medians(rows: Sequence[Row]) -> list[float | None]:
    """JSON has no word for what is not finite."""
    return [row.median if math.isfinite(row.median) else None for row in rows]


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


# The comparison as JUnit XML: a test per case, for CI systems that list tests.

SUITE = "flashinfer-perf"


def junit_xml(judgement: Judgement) -> str:
    suite = ET.Element("testsuite", name=SUITE)
    for problem in words.problems(judgement):
        ET.SubElement(_test(suite, "the comparison"), "error", message=safe_lines(problem))
    for judged in judgement.cases:
        outcome = _outcome(judged, strict=judgement.rules.strict)
        test = _test(suite, judged.name, _seconds(judged))
        for name, value in zip(("file", "line"), words.place(judged) or (), strict=False):
            test.set(name, safe_lines(str(value)))
        if outcome:
            ET.SubElement(test, outcome, message=safe_lines(f"{judged.verdict.value} {words.sentence(judged)}"))
    for step in judgement.steps:
        test = _test(suite, step.subject)
        if step.verdict:
            ET.SubElement(test, "failure" if step.worse else "error", message=safe_lines(step.line))
    suite.set("tests", str(len(suite)))
    suite.set("time", f"{sum(map(_seconds, judgement.cases)):.9f}")
    for plural, outcome in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(plural, str(len(suite.findall(f"*/{outcome}"))))
    ET.indent(suite)
    return f"<?xml version='1.0' encoding='utf-8'?>\n{ET.tostring(suite, encoding='unicode')}\n"


def _test(suite: ET.Element, name: str, seconds: float = 0.0) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=SUITE, name=safe_lines(name), time=f"{seconds:.9f}")


def _seconds(judged: Judged) -> float:
    """A call's median in head; 0 where head has none."""
    medians = [median for median in _medians(judged.case.after) if median is not None]
    return statistics.median(medians) if medians else 0.0


def _outcome(judged: Judged, *, strict: bool) -> str | None:
    if judged.worse:
        return "failure"
    if judged.unjudged or (strict and judged.verdict is Verdict.AMBIGUOUS):
        return "error"
    quiet = judged.verdict is Verdict.AMBIGUOUS or judged.admitted
    return "skipped" if quiet else None
