"""The report as Markdown, for a comment on a pull request: the answer, and the tables folded away."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from pytest_flashinfer_perf.api import Row, Run, formatting, printing
from pytest_flashinfer_perf.extensions.reports import backends, sections, story
from pytest_flashinfer_perf.extensions.reports.backends import BackendTable
from pytest_flashinfer_perf.extensions.reports.sections import Table
from pytest_flashinfer_perf.extensions.reports.story import CaseOutcome


def lines(runs: Sequence[Run]) -> Iterator[str]:
    outcomes = story.outcomes(runs)
    answer = story.answer(outcomes)
    where = ", ".join(story.devices(outcomes).values()) or "nothing measured"
    yield f"### FlashInfer performance: {formatting.as_markdown(where)}\n"
    tables = list(backends.comparisons(outcomes))
    sentences = (*backends.answers(tables), " ".join(answer.sentences))
    yield from (f"{formatting.as_markdown(sentence)}\n" for sentence in sentences)
    if answer.failed:
        yield from _table(("failed", "why"), answer.failed)
    added = sections.of(runs)
    for table in (one for section in added if section.is_answer for one in section.tables):
        yield from opened(table)
    for comparison in tables:
        yield from _folded(f"{comparison.routine}: {comparison.sentence}", _side_by_side(comparison))
    for table in (one for section in added if not section.is_answer for one in section.tables):
        yield from _folded(table.title, _with_sentences(table))
    yield from _folded("Every case", _cases(outcomes))
    for title, reasons in story.left(outcomes):
        yield from _folded(title, _table(("cases", "why"), ((str(count), reason) for count, reason in reasons)))
    sources = ((name, *values) for name, values in story.provenance(runs).items())
    yield from _folded("Where the numbers come from", _table(("", *(run.name for run in runs)), sources))


def opened(table: Table) -> Iterator[str]:
    yield f"### {formatting.as_markdown(table.title)}\n"
    yield from _with_sentences(table)


def _with_sentences(table: Table) -> Iterator[str]:
    if table.headings:
        yield from _table(table.headings, table.lines)
    if table.below:
        yield from (f"- {formatting.as_markdown(sentence)}" for sentence in table.below)
        yield ""


def _side_by_side(comparison: BackendTable) -> Iterator[str]:
    cells = []
    for shape, outcomes in comparison.shapes.items():
        times, best = dict.fromkeys(comparison.backends, ""), comparison.fastest[shape]
        for name, one in outcomes.items():
            note = "" if one.status == "ok" else f" ({one.status})"
            times[name] = f"{_median(one.row)}{note}{' (fastest)' if one in best else ''}"
        cells.append((shape, *times.values()))
    yield formatting.as_markdown(comparison.title) + "\n"
    yield from _table(("shape", *comparison.backends), cells)


def _cases(measured: Iterable[CaseOutcome]) -> Iterator[str]:
    headings = ("case", "backend", "median", "spread", "TFLOP/s", "TB/s", "% of roof", "status")
    cells = []
    for one, row in ((one, one.row) for one in measured if one.row):
        work = row.throughput
        times = (formatting.duration(row.median), formatting.spread(row.spread))
        rates = map(formatting.rate, (work.tflops, work.tb_per_sec, work.sol_pct))
        cells.append((one.case, formatting.named(row), *times, *rates, one.status))
    yield from _table(headings, cells)


def _median(row: Row | None) -> str:
    return formatting.duration(row.median) if row else ""


def _folded(title: str, content: Iterable[str]) -> Iterator[str]:
    yield f"<details><summary>{html.escape(printing.safe(title))}</summary>\n"
    yield from content
    yield "</details>\n"


def _table(headings: Sequence[str], cells: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from table(headings, cells)
    yield ""


def table(headings: Sequence[str], cells: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(map(formatting.as_markdown, headings))} |"
    yield f"|{'---|' * len(headings)}"
    for line in cells:
        yield f"| {' | '.join(map(formatting.as_markdown, line))} |"
