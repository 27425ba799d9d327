"""The comparison in a terminal: 80 columns of plain text, the worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.gate import advice, words
from pytest_flashinfer_perf.gate.verdict import Judged, Judgement, Verdict
from pytest_flashinfer_perf.runs.formatting import WIDTH, indented, wrapped


def lines(judgement: Judgement) -> Iterator[str]:
    yield from wrapped(words.against(judgement))
    for note in words.notes(judgement):
        yield from wrapped(note)
    for problem in words.problems(judgement):
        yield from wrapped(f"REFUSED: {problem}")
    for verdict in Verdict:
        of_verdict = judgement.having(verdict)
        if of_verdict:
            yield ""
            yield f"{verdict.value} ({len(of_verdict)})"
        yield from _cases(of_verdict)
    yield ""
    for step in judgement.steps:
        yield from wrapped(step.line)
    yield from wrapped(words.headline(judgement))
    command = advice.command(judgement)
    if command:
        yield "to decide what is AMBIGUOUS, measure both versions in turns:"
        yield f"  {command}"


def _cases(of_verdict: Sequence[Judged]) -> Iterator[str]:
    """A reason that many cases share is written once."""
    for judged in of_verdict:
        if judged.primary or judged.broken:
            yield from _brief(judged) if judged.verdict is Verdict.SAME and not judged.broken else _case(judged)
    others: dict[str, list[str]] = {}
    for judged in of_verdict:
        if not (judged.primary or judged.broken):
            others.setdefault("; ".join([_why(judged), *words.remarks(judged)]), []).append(judged.name)
    for why, names in others.items():
        yield from (f"  {name}" for name in names)
        yield from indented(why, 6)


def _why(judged: Judged) -> str:
    return f"{judged.reason}: {judged.sentence}"


def _brief(judged: Judged) -> Iterator[str]:
    seen = f"{words.percent(judged.primary.change)}, {words.detectable(judged)}" if judged.primary else ""
    name = f"  {judged.name}"
    if len(name) + len(seen) + 2 > WIDTH:
        yield name
        name = ""
    yield f"{name}{seen:>{WIDTH - len(name)}}"


def _case(judged: Judged) -> Iterator[str]:
    yield f"  {judged.name}"
    if judged.primary:
        yield from indented(f"{words.times(judged)}: {words.changes(judged)}", 6)
        yield from indented(f"{words.sure(judged, judged.primary)}, {words.detectable(judged)}", 6)
    for line in (_why(judged), *words.remarks(judged)):
        yield from indented(line, 6)
