"""The comparison as Markdown, for a pull request's comment or a job's summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.gate import words
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Verdict

HEAD = ("| verdict | case | time | change | sees | why |", "|---|---|---|---|---|---|")
FOLDED = (Verdict.SAME, Verdict.NEW)


def text(judgement: Judgement) -> str:
    return "\n".join(_lines(judgement)) + "\n"


def _lines(judgement: Judgement) -> Iterator[str]:
    yield f"### flashinfer-perf: {words.headline(judgement)}"
    yield ""
    yield _cell(words.against(judgement))
    for line in (*(f"**Refused**: {problem}" for problem in words.problems(judgement)), *words.notes(judgement)):
        yield ""
        yield _cell(line)
    told = [judged for judged in judgement.cases if judged.verdict not in FOLDED or judged.broken]
    others = [judged for judged in judgement.cases if judged not in told]
    if told:
        yield ""
        yield from _table(told)
    if others:
        yield from ("", f"<details><summary>{len(others)} more, same or new</summary>", "")
        yield from _table(others)
        yield from ("", "</details>")


def _table(cases: Sequence[Judged]) -> Iterator[str]:
    yield from HEAD
    for judged in cases:
        why = "; ".join([f"`{judged.reason}`", *words.remarks(judged)])
        if not judged.primary:
            why = f"{why}; {judged.sentence}"
        seen = words.sees(judged)
        cells = (judged.verdict.value, judged.name, words.times(judged), words.changes(judged), seen, why)
        yield f"| {' | '.join(map(_cell, cells))} |"


def _cell(cell: str) -> str:
    """A case's tag may hold anything: it stays text."""
    return cell.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", " ")
