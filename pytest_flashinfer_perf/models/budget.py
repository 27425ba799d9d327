"""The budget of a model's step: each kernel's count times the median of its fastest backend, and the sum."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.run_file import Run, RunError
from pytest_flashinfer_perf.runs.scatter import median_error
from pytest_flashinfer_perf.runs.step import ModelStep, StepKernel

OF_NORMAL = math.sqrt(math.pi / 2)  # the error of a median, in standard deviations over the root of the count
USABLE = ("ok", "noisy")
Problem = frozenset[tuple[str, Any]]


@dataclass(frozen=True)
class Sum:
    seconds: float
    error: float

    def change_from(self, base: Sum) -> Sum:
        """As a share of the base; both errors are taken for independent."""
        ratio = self.seconds / base.seconds
        relative = math.hypot(self.error / self.seconds, base.error / base.seconds)
        return Sum(ratio - 1, ratio * relative)


@dataclass(frozen=True)
class Entry:
    """A kernel, and the row of its fastest backend where it was measured."""

    kernel: StepKernel
    row: Row | None

    @property
    def seconds(self) -> float:
        return 0.0 if self.row is None else self.kernel.count * self.row.median

    @property
    def error(self) -> float:
        return 0.0 if self.row is None else self.kernel.count * _error(self.row)


@dataclass(frozen=True)
class Budget:
    entries: tuple[Entry, ...]
    device: str

    @property
    def gaps(self) -> list[StepKernel]:
        return [entry.kernel for entry in self.entries if entry.kernel.gap]

    @property
    def unmeasured(self) -> list[StepKernel]:
        """Kernels that have a case, of which the run has no usable row."""
        return [entry.kernel for entry in self.entries if not entry.kernel.gap and entry.row is None]

    @property
    def total(self) -> Sum:
        return _sum(self.entries)

    def change_from(self, base: Budget) -> Sum | None:
        """Of the kernels that both have; None without any."""
        both = [(now, then) for now, then in zip(self.entries, base.entries, strict=True) if now.row and then.row]
        if not both:
            return None
        return _sum(now for now, _ in both).change_from(_sum(then for _, then in both))


def of_run(step: ModelStep, run: Run) -> Budget:
    rows = [row for row in run.ours if row.status in USABLE]
    devices = sorted({str(row.identity.device_name) for row in rows})
    if len(devices) != 1:
        raise RunError(f"{run.name} has usable rows of {' and '.join(devices) or 'no device'}: a step runs on one GPU")
    fastest = _fastest(rows)
    return Budget(tuple(Entry(kernel, _row(kernel, fastest)) for kernel in step.kernels), devices[0])


def _fastest(rows: Sequence[Row]) -> dict[Problem, Row]:
    """The row of the fastest backend for each problem."""
    ordered = sorted(rows, key=lambda row: row.median, reverse=True)
    return {problem(row.params): row for row in ordered}


def problem(params: Mapping[str, Any]) -> Problem:
    """The same for all backends."""
    hashable = {name: tuple(value) if isinstance(value, list) else value for name, value in params.items()}
    return frozenset((name, value) for name, value in hashable.items() if name != "backend")


def _row(kernel: StepKernel, fastest: Mapping[Problem, Row]) -> Row | None:
    found = [fastest[wanted] for wanted in map(problem, kernel.problems) if wanted in fastest]
    return min(found, key=lambda row: row.median, default=None)


def _error(row: Row) -> float:
    """Of the median within one run; files without samples have their standard deviation only."""
    samples = row.stats.data
    if len(samples) > 1:
        low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
        return median_error(high - low, len(samples))
    return OF_NORMAL * row.stats.stddev / math.sqrt(max(1, row.stats.rounds))


def _sum(entries: Iterable[Entry]) -> Sum:
    listed = list(entries)
    return Sum(sum(entry.seconds for entry in listed), math.hypot(*(entry.error for entry in listed)))
