"""The comparison as Markdown, for a pull request's comment or a job's summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.gate import advice, words
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Verdict
from pytest_flashinfer_perf.runs.formatting import as_markdown

HEAD = ("| verdict | case | time | change | detects from | why |", "|---|---|---|---|---|---|")
FOLDED = (Verdict.SAME, Verdict.NEW)


def text(judgement: Judgement) -> str:
    return "\n".join(_lines(judgement)) + "\n"


def _lines(judgement: Judgement) -> Iterator[str]:
    yield f"### flashinfer-perf: {words.headline(judgement)}"
    yield ""
    yield as_markdown(words.against(judgement))
    refused = (f"**Refused**: {as_markdown(problem)}" for problem in words.problems(judgement))
    steps = (as_markdown(step.line) for step in judgement.steps)
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
    command = advice.command(judgement)
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
