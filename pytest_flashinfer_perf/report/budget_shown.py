"""A budget as a table of the terminal or of Markdown, with what it does not cover."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_flashinfer_perf.runs.budget import Budget, Entry, Sum
from pytest_flashinfer_perf.runs.formatting import as_markdown, duration, named
from pytest_flashinfer_perf.runs.step import ModelStep

HEADINGS = ("kernel", "count", "fastest backend", "median", "per step", "share")


def lines(step: ModelStep, budget: Budget, base: Budget | None) -> Iterator[str]:
    yield f"{step.title} on {budget.device}"
    table = list(_table(budget))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    yield from below(step, budget, base)


def markdown(step: ModelStep, budget: Budget, base: Budget | None) -> Iterator[str]:
    yield f"### {as_markdown(f'{step.title} on {budget.device}')}"
    yield ""
    for index, cells in enumerate(_table(budget)):
        yield f"| {' | '.join(map(as_markdown, cells))} |"
        if index == 0:
            yield "|---" * len(HEADINGS) + "|"
    yield ""
    yield from (f"- {as_markdown(line.strip())}" for line in below(step, budget, base))


def _table(budget: Budget) -> Iterator[tuple[str, ...]]:
    yield HEADINGS
    whole = budget.total.seconds
    for entry in sorted(budget.entries, key=lambda entry: -entry.seconds):
        if not entry.kernel.gap:
            yield (entry.kernel.name, str(entry.kernel.count), *_measured(entry, whole))


def _measured(entry: Entry, whole: float) -> tuple[str, ...]:
    if entry.row is None:
        return "not measured", "-", "-", "-"
    return (
        f"{entry.row.identity.routine}: {named(entry.row)}",
        duration(entry.row.median),
        duration(entry.seconds),
        f"{entry.seconds / whole:.1%}",
    )


def below(step: ModelStep, budget: Budget, base: Budget | None) -> Iterator[str]:
    complete = "" if not (budget.gaps or budget.unmeasured) else ", incomplete"
    total = budget.total
    yield f"sum {duration(total.seconds)} +- {duration(total.error)} of GPU time per step{complete}"
    if budget.unmeasured:
        names = ", ".join(dict.fromkeys(kernel.name for kernel in budget.unmeasured))
        yield f"without a row in the run, though a case measures it: {names}"
    for entry in budget.entries:
        if entry.row is not None and entry.kernel.note:
            yield f"{entry.kernel.name}: {entry.kernel.note}"
    if base is not None:
        yield _change(budget.change_from(base), budget, base)
    yield from step.coverage


def _change(change: Sum | None, budget: Budget, base: Budget) -> str:
    if change is None:
        return "the base has no kernel of this step"
    one_sided = [
        now.kernel.name
        for now, then in zip(budget.entries, base.entries, strict=True)
        if (now.row is None) != (then.row is None)
    ]
    without = f", without {', '.join(dict.fromkeys(one_sided))}, which only one run has" if one_sided else ""
    return f"compared with the base: {change.seconds:+.1%} +- {change.error:.1%} of GPU time per step{without}"
