"""Output for GitHub Actions: the job's summary, and annotations for cases that need attention."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pytest_flashinfer_perf.gate import markdown, words
from pytest_flashinfer_perf.gate.verdict import Judgement, Verdict
from pytest_flashinfer_perf.printing import safe_lines

SUMMARY = "GITHUB_STEP_SUMMARY"


def publish(judgement: Judgement) -> Iterator[str]:
    """Annotations, for standard output, once the summary is written; nothing where the variable is not set."""
    if not os.environ.get(SUMMARY):
        return
    yield from summarized(markdown.text(judgement))
    for problem in words.problems(judgement):
        yield _annotation("error", "refused", problem)
    for judged in judgement.cases:
        title = f"{judged.verdict.value} {judged.name}"
        if judged.worse or judged.unjudged:
            yield _annotation("error", title, words.sentence(judged))
        elif judged.verdict is Verdict.AMBIGUOUS:
            yield _annotation("warning", title, words.sentence(judged))


def summarized(text: str) -> Iterator[str]:
    """Appends to the summary; an annotation where it cannot be written."""
    try:
        with Path(os.environ[SUMMARY]).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        yield _annotation("warning", f"no {SUMMARY}", str(error))


def _annotation(level: str, title: str, message: str) -> str:
    return f"::{level} title={_escaped(title).replace(':', '%3A').replace(',', '%2C')}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return safe_lines(text).replace("%", "%25").replace("\n", "%0A")
