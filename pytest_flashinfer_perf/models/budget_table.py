"""The budget of a model's step as a table for the terminal or Markdown, with what it does not cover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_flashinfer_perf.models import budget as budgets
from pytest_flashinfer_perf.models.budget import Budget, Entry, Sum
from pytest_flashinfer_perf.runs.formatting import as_markdown, duration, markdown_table, named
from pytest_flashinfer_perf.runs.run_file import Run, RunError
from pytest_flashinfer_perf.runs.step import ModelStep, StepKernel

HEADINGS = ("kernel", "count", "fastest backend", "median", "per step", "share")


@dataclass(frozen=True)
class ShownStep:
    """A step that the newest of several runs measured; `trouble` is why there is no budget of it."""

    step: ModelStep
    budget: Budget | None
    base: Budget | None
    trouble: str = ""

    @property
    def below(self) -> list[str]:
        return list(below(self.step, self.budget, self.base)) if self.budget else [self.trouble]


def of_runs(runs: Sequence[Run]) -> list[ShownStep]:
    """Each step once, beside the first run that measured it."""
    measured = [(run.step, run) for run in sorted(runs, key=lambda run: run.when) if run.step is not None]
    newest = {step.title: (step, run) for step, run in measured}
    first = {step.title: run for step, run in reversed(measured)}
    return [_shown(step, run, first[title]) for title, (step, run) in newest.items()]


def _shown(step: ModelStep, run: Run, first: Run) -> ShownStep:
    try:
        return ShownStep(step, budgets.of_run(step, run), None if first is run else budgets.of_run(step, first))
    except RunError as error:
        return ShownStep(step, None, None, str(error))


def lines(step: ModelStep, budget: Budget, base: Budget | None) -> Iterator[str]:
    yield f"{step.title} on {budget.device}"
    shown = [HEADINGS, *table(budget)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for cells in shown:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    yield from below(step, budget, base)


def markdown(step: ModelStep, budget: Budget, base: Budget | None) -> Iterator[str]:
    yield f"### {as_markdown(f'{step.title} on {budget.device}')}"
    yield ""
    yield from markdown_table(HEADINGS, table(budget))
    yield ""
    yield from (f"- {as_markdown(line.strip())}" for line in below(step, budget, base))


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


def below(step: ModelStep, budget: Budget, base: Budget | None) -> Iterator[str]:
    total = budget.total
    yield f"sum {duration(total.seconds)} +- {duration(total.error)} of GPU time per step{_incomplete(budget)}"
    if budget.unmeasured:
        names = ", ".join(dict.fromkeys(kernel.name for kernel in budget.unmeasured))
        yield f"without a row in the run, though a case measures it: {names}, {_weights(budget.unmeasured, budget)}"
    for entry in budget.entries:
        if entry.row is not None and entry.kernel.note:
            yield f"{entry.kernel.name}: {entry.kernel.note}"
    if base is not None:
        yield _change(budget.change_from(base), budget, base)
    yield from step.coverage


def _incomplete(budget: Budget) -> str:
    if not (budget.gaps or budget.unmeasured):
        return ""
    measured = [entry.kernel for entry in budget.entries if entry.row is not None]
    return f", incomplete: of kernels with {_weights(measured, budget)}"


def _weights(kernels: Sequence[StepKernel], budget: Budget) -> str:
    """Files of older versions do not have the weights of their kernels."""
    whole = sum(entry.kernel.weight_bytes for entry in budget.entries)
    share = f"{sum(kernel.weight_bytes for kernel in kernels) / whole:.1%}" if whole else "an unknown share"
    return f"{share} of the weights"


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
