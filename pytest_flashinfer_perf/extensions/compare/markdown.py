"""The comparison as Markdown, for a pull request's comment or a job's summary.

It is written from the comparison's data (`document.py`) alone: reasons are codes, and all other texts are escaped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_flashinfer_perf.api import formatting, printing, verdict, words
from pytest_flashinfer_perf.extensions.compare import document
from pytest_flashinfer_perf.extensions.compare.document import CaseEntry, VerdictsDocument

HEAD = ("| verdict | case | time | change | detects from | why |", "|---|---|---|---|---|---|")
FOLDED = (verdict.Verdict.SAME, verdict.Verdict.NEW)


def text(judgement: verdict.Judgement) -> str:
    return "\n".join(_lines(document.of(judgement))) + "\n"


def _lines(verdicts: VerdictsDocument) -> Iterator[str]:
    yield f"### flashinfer-perf: {formatting.as_markdown(verdicts.headline)}"
    yield ""
    for one in verdicts.steps:
        yield from (formatting.as_markdown(one.line), "") if one.is_traffic else ()
    yield formatting.as_markdown(verdicts.against)
    refused = (f"**Refused**: {formatting.as_markdown(problem)}" for problem in verdicts.refusals)
    sums = (formatting.as_markdown(one.line) for one in verdicts.steps if not one.is_traffic)
    for line in (*refused, *sums, *map(formatting.as_markdown, verdicts.notes)):
        yield ""
        yield line
    shown, others = list[CaseEntry](), list[CaseEntry]()
    for case in verdicts.cases:
        (others if case.verdict in FOLDED and not case.broken else shown).append(case)
    if shown:
        yield ""
        yield from _table(shown)
    if others:
        yield from ("", f"<details><summary>{len(others)} more, same or new</summary>", "")
        yield from _table(others)
        yield from ("", "</details>")


def _table(cases: Sequence[CaseEntry]) -> Iterator[str]:
    yield from HEAD
    yield from map(_line, cases)


def _line(case: CaseEntry) -> str:
    beside = [*case.remarks, *([] if case.judged_in else [case.sentence])]
    why = "; ".join([f"`{case.reason}`", *map(formatting.as_markdown, beside)])
    cells = (case.verdict.value, case.case, case.time, case.change, case.detects)
    return f"| {' | '.join(map(formatting.as_markdown, cells))} | {why} |"


# Output for GitHub Actions: the job's summary, and annotations for cases that need attention.

SUMMARY, LARGEST = "GITHUB_STEP_SUMMARY", 1_000_000


def publish(judgement: verdict.Judgement) -> Iterator[str]:
    """Annotations, for standard output, once the summary is written; nothing where the variable is not set."""
    if not os.environ.get(SUMMARY):
        return
    yield from summarized(text(judgement))
    for problem in words.problems(judgement):
        yield annotation("error", "refused", problem)
    certain = [judged for judged in judgement.cases if judged.worse or judged.unjudged]
    for judged in certain:
        title = f"{judged.verdict.value} {judged.name}"
        yield annotation("error", title, _sentence(judged))
    ambiguous = [judged.name for judged in judgement.having(verdict.Verdict.AMBIGUOUS) if judged not in certain]
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
    """Keep as many lines as fit into so many bytes: GitHub takes all of a text or nothing."""
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= most:
        return text
    kept = encoded[: encoded.rfind(b"\n", 0, most)].decode()
    folded = kept.count("<details>") - kept.count("</details>")
    return kept + "\n\n</details>" * folded + "\n\nThe rest is in the files.\n"


def _sentence(judged: verdict.Judged) -> str:
    """One case for people: what, by how much, how sure, and what stands beside it."""
    parts = [judged.sentence]
    if judged.primary:
        change = f"{words.times(judged)}: {words.changes(judged)}"
        parts = [change, words.confidence(judged, judged.primary), judged.sentence]
    return "; ".join([*parts, *words.remarks(judged)])


def annotation(level: str, title: str, message: str) -> str:
    headed = _escaped(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={headed}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return printing.safe_lines(text).replace("%", "%25").replace("\n", "%0A")
