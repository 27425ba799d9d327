"""The comparison as Markdown, for a pull request's comment or a job's summary.

It is written from the comparison's document (`document.py`) alone, and so from a file of verdicts as well, whoever
wrote that: only the members that are named here are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_flashinfer_perf.gate import document, words
from pytest_flashinfer_perf.gate.match import Reason
from pytest_flashinfer_perf.gate.verdict import Judgement, Verdict
from pytest_flashinfer_perf.printing import safe, safe_lines
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.formatting import as_markdown

HEAD = ("| verdict | case | time | change | detects from | why |", "|---|---|---|---|---|---|")
FOLDED = (Verdict.SAME, Verdict.NEW)


@dataclass(frozen=True)
class ToldCase:
    verdict: Verdict
    reason: Reason
    case: str
    judged_in: str | None
    time: str
    change: str
    detects: str
    sentence: str
    remarks: tuple[str, ...]
    broken: tuple[str, ...]

    @property
    def line(self) -> str:
        beside = [*self.remarks, *([] if self.judged_in else [self.sentence])]
        why = "; ".join([f"`{self.reason.value}`", *map(as_markdown, beside)])
        cells = (self.verdict.value, self.case, self.time, self.change, self.detects)
        return f"| {' | '.join(map(as_markdown, cells))} | {why} |"


@dataclass(frozen=True)
class ToldStep:
    line: str
    is_traffic: bool


@dataclass(frozen=True)
class Told:
    """What Markdown says of a comparison."""

    headline: str
    against: str
    refusals: tuple[str, ...]
    steps: tuple[ToldStep, ...]
    notes: tuple[str, ...]
    to_decide: str | None
    cases: tuple[ToldCase, ...]


def text(judgement: Judgement) -> str:
    return of_document(document.of(judgement))


def of_document(values: Any) -> str:
    """The Markdown of a comparison's document; raises FieldError for what is none."""
    return "\n".join(_lines(fields.read(Told, values, "the verdicts"))) + "\n"


def _lines(told: Told) -> Iterator[str]:
    yield f"### flashinfer-perf: {as_markdown(told.headline)}"
    yield ""
    for step in told.steps:
        yield from (as_markdown(step.line), "") if step.is_traffic else ()
    yield as_markdown(told.against)
    refused = (f"**Refused**: {as_markdown(problem)}" for problem in told.refusals)
    steps = (as_markdown(step.line) for step in told.steps if not step.is_traffic)
    for line in (*refused, *steps, *map(as_markdown, told.notes)):
        yield ""
        yield line
    shown, others = list[ToldCase](), list[ToldCase]()
    for case in told.cases:
        (others if case.verdict in FOLDED and not case.broken else shown).append(case)
    if shown:
        yield ""
        yield from _table(shown)
    if others:
        yield from ("", f"<details><summary>{len(others)} more, same or new</summary>", "")
        yield from _table(others)
        yield from ("", "</details>")
    if told.to_decide:
        command = f"    {safe(told.to_decide)}"
        yield from ("", "To decide what is AMBIGUOUS, measure both versions in turns:", "", command)


def _table(cases: Sequence[ToldCase]) -> Iterator[str]:
    yield from HEAD
    yield from (case.line for case in cases)


# Output for GitHub Actions: the job's summary, and annotations for cases that need attention.

SUMMARY, LARGEST = "GITHUB_STEP_SUMMARY", 1_000_000


def publish(judgement: Judgement) -> Iterator[str]:
    """Annotations, for standard output, once the summary is written; nothing where the variable is not set."""
    if not os.environ.get(SUMMARY):
        return
    yield from summarized(text(judgement))
    for problem in words.problems(judgement):
        yield annotation("error", "refused", problem)
    certain = [judged for judged in judgement.cases if judged.worse or judged.unjudged]
    for judged in certain:
        title = f"{judged.verdict.value} {judged.name}"
        yield annotation("error", title, words.sentence(judged), words.place(judged))
    ambiguous = [judged.name for judged in judgement.having(Verdict.AMBIGUOUS) if judged not in certain]
    if ambiguous:  # one for all: GitHub shows ten of a step
        title = f"{len(ambiguous)} AMBIGUOUS"
        yield annotation("warning", title, f"too noisy to judge: {', '.join(ambiguous)}")


def summarized(text: str) -> Iterator[str]:
    """Appends to the summary; an annotation where it cannot be written."""
    try:
        with Path(os.environ[SUMMARY]).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(cut(text, LARGEST))
    except OSError as error:
        yield annotation("warning", f"no {SUMMARY}", str(error))


def cut(text: str, most: int) -> str:
    """As many of its lines as have so many bytes: GitHub takes all of a text or nothing."""
    said = text.encode(errors="backslashreplace")
    if len(said) <= most:
        return text
    kept = said[: said.rfind(b"\n", 0, most)].decode()
    folded = kept.count("<details>") - kept.count("</details>")
    return kept + "\n\n</details>" * folded + "\n\nThe rest is in the files.\n"


def annotation(level: str, title: str, message: str, place: tuple[str, int] | None = None) -> str:
    where = {"file": place[0], "line": str(place[1])} if place else {}
    values = {
        name: _escaped(text).replace(":", "%3A").replace(",", "%2C") for name, text in {"title": title, **where}.items()
    }
    return f"::{level} {','.join(f'{name}={text}' for name, text in values.items())}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return safe_lines(text).replace("%", "%25").replace("\n", "%0A")
