"""The budget of a model's step, or of recorded traffic: each kernel's count times its median, and the sum.

Of several backends the fastest counts. A kernel that a case measures and that has no usable row says why: what the
run has of its cases that ended otherwise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.api import Row, Run, formatting, run_file, scatter
from pytest_flashinfer_perf.extensions.models.step import StepKernel, StepPlan, plan_of
from pytest_flashinfer_perf.extensions.reports.sections import Section, Table

USABLE = ("ok", "noisy")
UNUSABLE = {
    "wrong": "its answer is wrong",
    "invalid": "it is faster than the device can be",
    "": "nothing was timed",
}
MOST_REASONS = 3
ProblemKey = frozenset[tuple[str, Any]]


@dataclass(frozen=True)
class Sum:
    seconds: float
    error: float


@dataclass(frozen=True)
class KernelTime:
    """A kernel, and the row of its fastest backend, or why it was not measured."""

    kernel: StepKernel
    row: Row | None
    reason: str = ""

    @property
    def seconds(self) -> float:
        return 0.0 if self.row is None else self.kernel.count * self.row.median

    @property
    def error(self) -> float:
        row = self.row
        return (
            0.0 if row is None else self.seconds * scatter.relative_error(row.stats.data, row.spread, row.stats.rounds)
        )


@dataclass(frozen=True)
class Budget:
    """The time of a step in a run; without entries, `trouble` says why there is none."""

    plan: StepPlan
    entries: tuple[KernelTime, ...] = ()
    device: str = ""
    trouble: str = ""

    @property
    def unmeasured(self) -> list[KernelTime]:
        """Kernels that have a case, of which the run has no usable row."""
        return [entry for entry in self.entries if not entry.kernel.gap and entry.row is None]

    @property
    def total(self) -> Sum:
        return _sum(self.entries)


def of_run(plan: StepPlan, run: Run) -> Budget:
    rows = [row for row in run.ours if row.status in USABLE]
    devices = sorted({str(row.identity.device_name) for row in rows})
    if len(devices) != 1:
        raise run_file.RunError(
            f"{run.name} has usable rows of {' and '.join(devices) or 'no device'}: a step runs on one GPU"
        )
    ordered = sorted(rows, key=lambda row: row.median, reverse=True)
    fastest = {key: row for row in ordered for key in keys_of(row.params)}
    entries = tuple(_entry(kernel, fastest, run) for kernel in plan.kernels)
    return Budget(plan, entries, devices[0])


def of_runs(runs: Sequence[Run]) -> list[Budget]:
    """The budget of each step, from the newest run that has it."""
    newest = {plan.title: (plan, run) for run in sorted(runs, key=lambda run: run.when) if (plan := plan_of(run))}
    return [_if_any(plan, run) for plan, run in newest.values()]


def _if_any(plan: StepPlan, run: Run) -> Budget:
    try:
        return of_run(plan, run)
    except run_file.RunError as error:
        return Budget(plan, trouble=str(error))


def keys_of(params: Mapping[str, Any]) -> tuple[ProblemKey, ProblemKey]:
    """The keys of a row: with its backend, and without, for a problem of a plan that names no backend."""
    key = key_of(params)
    return key, key - {("backend", _hashable(params.get("backend")))}


def key_of(params: Mapping[str, Any]) -> ProblemKey:
    return frozenset((name, _hashable(value)) for name, value in params.items())


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return frozenset((name, _hashable(one)) for name, one in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, (list, tuple)) else value


def _entry(kernel: StepKernel, fastest: Mapping[ProblemKey, Row], run: Run) -> KernelTime:
    rows = [fastest[wanted] for wanted in map(key_of, kernel.problems) if wanted in fastest]
    row = min(rows, key=lambda row: row.median, default=None)
    return KernelTime(kernel, row, "" if row or kernel.gap else _reason(kernel, run))


def _reason(kernel: StepKernel, run: Run) -> str:
    """Why no case of the kernel was measured: each reason once, with its backends."""
    wanted = {key_of(one) for one in kernel.problems}
    rows = [row for row in run.ours if not wanted.isdisjoint(keys_of(row.params))]
    unusable = ((row.identity, UNUSABLE[row.status or ""]) for row in rows)
    left = (
        (one.identity, f"{one.outcome}: {one.headline}")
        for one in run.unmeasured
        if f"{one.identity.routine}/{one.identity.shape}" in kernel.cases
    )
    backends: dict[str, list[str]] = {}
    for identity, sentence in (*unusable, *left):
        backends.setdefault(sentence, []).append(str(identity.backend))
    reasons = [f"{', '.join(dict.fromkeys(names))}: {sentence}" for sentence, names in backends.items()]
    more = [f"and {len(reasons) - MOST_REASONS} other reasons"] if len(reasons) > MOST_REASONS else []
    return "; ".join([*reasons[:MOST_REASONS], *more]) or f"{run.name} has no test of it"


def _sum(entries: Iterable[KernelTime]) -> Sum:
    listed = list(entries)
    return Sum(sum(entry.seconds for entry in listed), math.hypot(*(entry.error for entry in listed)))


# The budget of a model's step as a table for the terminal or a report, with what it does not cover.

OF_A_STEP = ("kernel", "count", "fastest backend", "median", "per step", "share")
OF_TRAFFIC = ("API", "calls", "cases", "mean", "per second", "share")


def headings(budget: Budget) -> tuple[str, ...]:
    return OF_TRAFFIC if budget.plan.traffic else OF_A_STEP


def lines(budget: Budget) -> Iterator[str]:
    yield f"{budget.plan.title} on {budget.device}"
    shown = [headings(budget), *table(budget)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for cells in shown:
        yield "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
    yield from below(budget)


def as_table(budget: Budget) -> Table:
    sentences = [line.strip() for line in below(budget)]
    if budget.trouble:
        return Table(budget.plan.title, below=sentences)
    return Table(f"{budget.plan.title} on {budget.device}", headings(budget), list(table(budget)), sentences)


def section(budgets: Iterable[Budget]) -> Section:
    """The section of a report, with a table for each budget."""
    return Section("step", "A model's step", [as_table(one) for one in budgets], is_answer=True)


def table(budget: Budget) -> Iterator[tuple[str, ...]]:
    whole = budget.total.seconds
    if budget.plan.traffic:
        yield from _by_api(budget, budget.plan.traffic.seconds)
        return
    for entry in sorted(budget.entries, key=lambda entry: -entry.seconds):
        if entry.kernel.gap:
            continue
        cells = ["not measured", "-", "-", "-"]
        if entry.row is not None:
            backend = f"{entry.row.identity.routine}: {formatting.named(entry.row)}"
            share = f"{entry.seconds / whole:.1%}"
            cells = [backend, formatting.duration(entry.row.median), formatting.duration(entry.seconds), share]
        yield (entry.kernel.name, str(entry.kernel.count), *cells)


def _by_api(budget: Budget, seconds: float) -> Iterator[tuple[str, ...]]:
    """The GPU's time in the calls of each API, per second of recorded traffic."""
    whole, of_api = budget.total.seconds, defaultdict(list)
    for entry in budget.entries:
        if entry.row is not None:
            of_api[entry.kernel.name].append(entry)
    for name, entries in sorted(of_api.items(), key=lambda one: -_sum(one[1]).seconds):
        calls, took = sum(entry.kernel.count for entry in entries), _sum(entries).seconds
        per_second = formatting.duration(took / seconds) if seconds else "-"
        times = (formatting.duration(took / calls), per_second, f"{took / whole:.1%}")
        yield (name, f"{calls:,}", str(len(entries)), *times)


def below(budget: Budget) -> Iterator[str]:
    if budget.trouble:
        yield budget.trouble
        return
    total, traffic = budget.total, budget.plan.traffic
    per = " per step" if traffic is None else ""
    lacking = f", incomplete: without {_lacking(budget)}" if budget.plan.gaps or budget.unmeasured else ""
    on_gpu = any(entry.row is not None and entry.row.identity.gpu_uuid for entry in budget.entries)
    time = "GPU time" if on_gpu else "time on a CPU"
    within = f"+- {formatting.duration(total.error)} within this process"
    yield f"sum {formatting.duration(total.seconds)} of {time}{per}, {within}{lacking}"
    if traffic and traffic.seconds:
        yield f"{formatting.duration(total.seconds / traffic.seconds)} of {time} for each second that was recorded"
    for reason in dict.fromkeys(entry.reason for entry in budget.unmeasured):
        kernels = [entry.kernel for entry in budget.unmeasured if entry.reason == reason]
        names = ", ".join(dict.fromkeys(kernel.name for kernel in kernels))
        yield f"without a row, though a case measures it: {names}{_share(kernels, budget)}: {reason}"
    yield from budget.plan.coverage


def _lacking(budget: Budget) -> str:
    """What the sum lacks: kernels of a step, or a share of the calls of traffic."""
    left = [entry.kernel for entry in budget.entries if entry.row is None]
    if budget.plan.traffic is None:
        return f"{', '.join(dict.fromkeys(kernel.name for kernel in left))}{_share(left, budget)}"
    calls = sum(entry.kernel.count for entry in budget.entries)
    return f"{sum(kernel.count for kernel in left) / calls:.1%} of the calls"


def _share(kernels: Sequence[StepKernel], budget: Budget) -> str:
    """The part of the weights that these kernels read, where they read any."""
    whole = sum(entry.kernel.weight_bytes for entry in budget.entries)
    share = f"{sum(kernel.weight_bytes for kernel in kernels) / whole:.1%}" if whole else "0.0%"
    return "" if share == "0.0%" else f" ({share} of the weights)"
