"""The comparison as JUnit XML: a test per case, for CI systems that list tests."""

from __future__ import annotations

import math
import statistics
from xml.etree import ElementTree as ET

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Verdict
from pytest_flashinfer_perf.printing import safe_lines

SUITE = "flashinfer-perf"


def text(judgement: Judgement) -> str:
    suite = ET.Element("testsuite", name=SUITE)
    for problem in words.problems(judgement):
        ET.SubElement(_test(suite, "the comparison"), "error", message=safe_lines(problem))
    for judged in judgement.cases:
        outcome = _outcome(judged, strict=judgement.rules.strict)
        test = _test(suite, judged.name, _seconds(judged))
        if outcome:
            ET.SubElement(test, outcome, message=safe_lines(f"{judged.verdict.value} {words.sentence(judged)}"))
    for step in judgement.steps:
        test = _test(suite, f"step of {step.model}")
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
    medians = [row.median for row in judged.case.after if math.isfinite(row.median)]
    return statistics.median(medians) if medians else 0.0


def _outcome(judged: Judged, *, strict: bool) -> str | None:
    if judged.worse:
        return "failure"
    if judged.unjudged or (strict and judged.verdict is Verdict.AMBIGUOUS):
        return "error"
    quiet = judged.verdict is Verdict.AMBIGUOUS or judged.admitted
    return "skipped" if quiet else None
