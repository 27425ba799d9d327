"""The comparison as Markdown, for a pull request's comment or a job's summary."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Verdict
from pytest_flashinfer_perf.printing import safe_lines
from pytest_flashinfer_perf.rows.formatting import as_markdown

HEAD = ("| verdict | case | time | change | detects from | why |", "|---|---|---|---|---|---|")
FOLDED = (Verdict.SAME, Verdict.NEW)


def text(judgement: Judgement) -> str:
    return "\n".join(_lines(judgement)) + "\n"


def _lines(judgement: Judgement) -> Iterator[str]:
    yield f"### flashinfer-perf: {words.headline(judgement)}"
    yield ""
    for step in judgement.steps:
        yield from (as_markdown(step.line), "") if step.apis else ()
    yield as_markdown(words.against(judgement))
    refused = (f"**Refused**: {as_markdown(problem)}" for problem in words.problems(judgement))
    steps = (as_markdown(step.line) for step in judgement.steps if not step.apis)
    for line in (*refused, *steps, *map(as_markdown, words.notes(judgement))):
        yield ""
        yield line
    shown = [judged for judged in judgement.cases if judged.verdict not in FOLDED or judged.broken]
    others = [judged for judged in judgement.cases if judged not in shown]
    if shown:
        yield ""
        yield from _table(shown)
    if others:
        yield from ("", f"<details><summary>{len(others)} more, same or new</summary>", "")
        yield from _table(others)
        yield from ("", "</details>")
    command = words.command(judgement)
    if command:
        yield from ("", "To decide what is AMBIGUOUS, measure both versions in turns:", "", f"    {command}")


def _table(cases: Sequence[Judged]) -> Iterator[str]:
    yield from HEAD
    for judged in cases:
        beside = [*words.remarks(judged), *([] if judged.primary else [judged.sentence])]
        why = "; ".join([f"`{judged.reason}`", *map(as_markdown, beside)])
        figures = (words.times(judged), words.changes(judged), words.detectable(judged))
        cells = (judged.verdict.value, judged.name, *figures)
        yield f"| {' | '.join(map(as_markdown, cells))} | {why} |"


# Output for GitHub Actions: the job's summary, and annotations for cases that need attention.

SUMMARY = "GITHUB_STEP_SUMMARY"


def publish(judgement: Judgement) -> Iterator[str]:
    """Annotations, for standard output, once the summary is written; nothing where the variable is not set."""
    if not os.environ.get(SUMMARY):
        return
    yield from summarized(text(judgement))
    for problem in words.problems(judgement):
        yield _annotation("error", "refused", problem)
    certain = [judged for judged in judgement.cases if judged.worse or judged.unjudged]
    for judged in certain:
        title = f"{judged.verdict.value} {judged.name}"
        yield _annotation("error", title, words.sentence(judged), words.place(judged))
    ambiguous = [judged.name for judged in judgement.having(Verdict.AMBIGUOUS) if judged not in certain]
    if ambiguous:  # one for all: GitHub shows ten of a step
        title = f"{len(ambiguous)} AMBIGUOUS"
        yield _annotation("warning", title, f"too noisy to judge: {', '.join(ambiguous)}")


def summarized(text: str) -> Iterator[str]:
    """Appends to the summary; an annotation where it cannot be written."""
    try:
        with Path(os.environ[SUMMARY]).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        yield _annotation("warning", f"no {SUMMARY}", str(error))


def _annotation(level: str, title: str, message: str, place: tuple[str, int] | None = None) -> str:
    where = {"file": place[0], "line": str(place[1])} if place else {}
    values = {
        name: _escaped(text).replace(":", "%3A").replace(",", "%2C") for name, text in {"title": title, **where}.items()
    }
    return f"::{level} {','.join(f'{name}={text}' for name, text in values.items())}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return safe_lines(text).replace("%", "%25").replace("\n", "%0A")
