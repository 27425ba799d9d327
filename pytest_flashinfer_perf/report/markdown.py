"""The report as Markdown, for a comment on a pull request: the answer, and the tables folded away."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.models import budget
from pytest_flashinfer_perf.printing import safe
from pytest_flashinfer_perf.report import host, story
from pytest_flashinfer_perf.report.story import BackendTable, CaseHistory, ShownVerdict
from pytest_flashinfer_perf.rows.formatting import as_markdown, duration, grouped, markdown_table, named, rate, spread
from pytest_flashinfer_perf.rows.row import Row
from pytest_flashinfer_perf.rows.run_file import Run

LEFT = {"xfailed": "Failed as expected", "skipped": "Skipped"}


def lines(runs: Sequence[Run]) -> Iterator[str]:
    found, judged = story.outcomes(runs), story.of(runs)
    answer = story.answer(runs, found, judged)
    yield f"### FlashInfer performance: {as_markdown(', '.join(story.devices(found).values()) or 'nothing measured')}\n"
    yield as_markdown(" ".join(answer.sentences)) + "\n"
    yield from _failed(answer.failed)
    yield from _slower(answer.slower, judged)
    yield from _undecided(answer.undecided)
    for one in budget.of_runs(runs):
        if not one.trouble:
            yield from (*budget.markdown(one), "")
    for comparison in story.comparisons(found):
        yield from _folded(f"{comparison.routine}: {_wins(comparison)}", _side_by_side(comparison))
    for title, table in host.tables([one.row for one in found if one.row]).items():
        yield from _folded(title, _table(*table))
    yield from _folded("Every case", _cases(found))
    for status, title in LEFT.items():
        if any(one.status == status for one in found):
            yield from _folded(title, _reasons(found, status))
    yield from _folded("Where the numbers come from", _provenance(runs))


def _failed(failed: Sequence[CaseHistory]) -> Iterator[str]:
    if failed:
        yield from _table(("failed", "why"), ((one.case, one.reason) for one in failed))


def _slower(slower: Sequence[CaseHistory], judged: Mapping[str, ShownVerdict]) -> Iterator[str]:
    if slower:
        cells = ((one.case, _median(one.row), judged[one.case].reason) for one in slower)
        yield from _table(("slower", "median", "how sure"), cells)


def _undecided(undecided: Mapping[str, Sequence[str]]) -> Iterator[str]:
    if undecided:
        yield from _table(("not decided", "why"), ((", ".join(cases), why) for why, cases in undecided.items()))


def _wins(comparison: BackendTable) -> str:
    shared = {backend: f" ({count} shared)" for backend, count in comparison.shared.items()}
    return ", ".join(f"{name} wins {count}{shared.get(name, '')}" for name, count in comparison.wins.most_common())


def _side_by_side(comparison: BackendTable) -> Iterator[str]:
    yield as_markdown(comparison.title) + "\n"
    yield from _table(("shape", *comparison.backends), (_line(comparison, shape) for shape in comparison.shapes))


def _line(comparison: BackendTable, shape: str) -> tuple[str, ...]:
    cells, best = comparison.shapes[shape], comparison.fastest(shape)
    times = (_time(cells[name], cells[name] in best) if name in cells else "" for name in comparison.backends)
    return (shape, *times)


def _time(one: CaseHistory, best: bool) -> str:
    note = "" if one.status == "ok" else f" ({one.status})"
    return f"{_median(one.row)}{note}{' (fastest)' if best else ''}"


def _cases(measured: Iterable[CaseHistory]) -> Iterator[str]:
    headings = ("case", "backend", "median", "spread", "TFLOP/s", "TB/s", "% of roof", "status")
    yield from _table(headings, (_numbers(one, one.row) for one in measured if one.row))


def _median(row: Row | None) -> str:
    return duration(row.median) if row else ""


def _numbers(one: CaseHistory, row: Row) -> tuple[str, ...]:
    work = row.throughput
    rates = map(rate, (work.tflops, work.tb_per_sec, work.sol_pct))
    return (one.case, named(row), duration(row.median), spread(row.spread), *rates, one.status)


def _reasons(found: Iterable[CaseHistory], status: str) -> Iterator[str]:
    reasons = story.reasons(one for one in found if one.status == status)
    yield from _table(("cases", "why"), ((str(count), reason) for reason, count in reasons.most_common()))


def _provenance(runs: Sequence[Run]) -> Iterator[str]:
    facts = [story.provenance(run) for run in runs]
    names = dict.fromkeys(name for of_run in facts for name in of_run)
    yield from _table(("", *(r.name for r in runs)), ((n, *(of_run.get(n, "") for of_run in facts)) for n in names))


def _folded(title: str, content: Iterable[str]) -> Iterator[str]:
    yield f"<details><summary>{html.escape(safe(title))}</summary>\n"
    yield from content
    yield "</details>\n"


def _table(headings: Sequence[str], cells: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from markdown_table(headings, cells)
    yield ""


# Medians of a routine in a grid of batch size and sequence length.

BATCH, KEYS, QUERIES = ("batch_size",), ("s_kv", "max_seq_len"), ("s_qo",)
Cells = Mapping[str, str]


@dataclass(frozen=True)
class HeatMap:
    """Shapes in a grid of batch and sequence; the shapes of a group differ in nothing else."""

    sequences: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[int, Cells], ...]], ...]


def heat_map(comparison: BackendTable) -> HeatMap | None:
    """None of a routine without batch and sequence, or with a single one of them."""
    known = {shape: at for shape in comparison.shapes if (at := _at(comparison, shape)) and comparison.fastest(shape)}
    sequences = tuple(dict.fromkeys(_length(at) for at in sorted(known.values(), key=lambda at: at[1:])))
    groups = grouped(known, lambda shape: _beside(shape, known[shape]))
    found = tuple((title, tuple(_by_batch({shape: known[shape] for shape in alike}))) for title, alike in groups)
    return HeatMap(sequences, found) if len(known) > 1 else None


def _by_batch(known: Mapping[str, tuple[int, int, int]]) -> Iterator[tuple[int, Cells]]:
    for batch, shapes in grouped(sorted(known, key=lambda shape: known[shape]), lambda shape: known[shape][0]):
        yield batch, {_length(known[shape]): shape for shape in shapes}


def _at(comparison: BackendTable, shape: str) -> tuple[int, int, int] | None:
    """Batch, keys and queries of a request."""
    row = next(iter(comparison.shapes[shape].values())).row
    params = row.params if row else {}
    batch, keys, queries = (next((params[n] for n in names if n in params), None) for names in (BATCH, KEYS, QUERIES))
    return None if batch is None or keys is None else (batch, keys, queries or 1)


def _length(at: tuple[int, int, int]) -> str:
    _, keys, queries = at
    return f"{keys}" if queries == 1 else f"{keys} (q {queries})"


def _beside(shape: str, at: tuple[int, int, int]) -> str:
    """The shape's id without batch and sequence."""
    shown = {f"{letter}{size}" for letter, size in zip("bsq", at, strict=True)}
    return "-".join(word for word in shape.split("-") if word not in shown)
