"""The budget of a model's step as a table for the terminal or Markdown, with what it does not cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_flashinfer_perf.models.budget import Budget, Entry
from pytest_flashinfer_perf.runs.formatting import as_markdown, duration, markdown_table, named
from pytest_flashinfer_perf.runs.step import StepKernel

HEADINGS = ("kernel", "count", "fastest backend", "median", "per step", "share")


def lines(budget: Budget) -> Iterator[str]:
    yield f"{budget.plan.title} on {budget.device}"
    shown = [HEADINGS, *table(budget)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for cells in shown:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    yield from below(budget)


def markdown(budget: Budget) -> Iterator[str]:
    yield f"### {as_markdown(f'{budget.plan.title} on {budget.device}')}"
    yield ""
    yield from markdown_table(HEADINGS, table(budget))
    yield ""
    yield from (f"- {as_markdown(line.strip())}" for line in below(budget))


def table(budget: Budget) -> Iterator[tuple[str, ...]]:
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


def below(budget: Budget) -> Iterator[str]:
    if budget.trouble:
        yield budget.trouble
        return
    total = budget.total
    yield f"sum {duration(total.seconds)} +- {duration(total.error)} of GPU time per step{_incomplete(budget)}"
    for reason, kernels in _by_reason(budget.unmeasured).items():
        names = ", ".join(dict.fromkeys(kernel.name for kernel in kernels))
        yield f"without a row, though a case measures it: {names} ({_weights(kernels, budget)}): {reason}"
    for entry in budget.entries:
        if entry.row is not None and entry.kernel.note:
            yield f"{entry.kernel.name}: {entry.kernel.note}"
    if budget.base is not None:
        yield _change(budget)
    yield from budget.plan.coverage


def _by_reason(entries: Sequence[Entry]) -> dict[str, list[StepKernel]]:
    found: dict[str, list[StepKernel]] = {}
    for entry in entries:
        found.setdefault(entry.reason, []).append(entry.kernel)
    return found


def _incomplete(budget: Budget) -> str:
    if not (budget.plan.gaps or budget.unmeasured):
        return ""
    measured = [entry.kernel for entry in budget.entries if entry.row is not None]
    return f", incomplete: of kernels with {_weights(measured, budget)}"


def _weights(kernels: Sequence[StepKernel], budget: Budget) -> str:
    """Files of older versions do not have the weights of their kernels."""
    whole = sum(entry.kernel.weight_bytes for entry in budget.entries)
    share = f"{sum(kernel.weight_bytes for kernel in kernels) / whole:.1%}" if whole else "an unknown share"
    return f"{share} of the weights"


def _change(budget: Budget) -> str:
    change = budget.change
    if change is None:
        return "the base has no kernel of this step"
    one_sided = [now.kernel.name for now, then in budget.beside if (now.row is None) != (then.row is None)]
    without = f", without {', '.join(dict.fromkeys(one_sided))}, which only one run has" if one_sided else ""
    return f"compared with the base: {change.seconds:+.1%} +- {change.error:.1%} of GPU time per step{without}"
