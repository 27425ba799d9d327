"""A model's step as a budget: for each kernel its count times the median of the fastest backend, and their sum."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.routines.model_configs.kernel import Kernel
from pytest_flashinfer_perf.routines.model_step import Plan, Planned
from pytest_flashinfer_perf.runs.row import Row
from pytest_flashinfer_perf.runs.run_file import Run, RunError
from pytest_flashinfer_perf.runs.scatter import median_error

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

    kernel: Kernel
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
    def gaps(self) -> list[Kernel]:
        return [entry.kernel for entry in self.entries if entry.kernel.gap]

    @property
    def unmeasured(self) -> list[Kernel]:
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


def of_run(plan: Plan, run: Run) -> Budget:
    rows = [row for row in run.ours if row.status in USABLE]
    devices = sorted({str(row.identity.device_name) for row in rows})
    if len(devices) != 1:
        raise RunError(f"{run.name} has usable rows of {' and '.join(devices) or 'no device'}: a step runs on one GPU")
    fastest = _fastest(rows)
    return Budget(tuple(Entry(one.kernel, _row(one, fastest)) for one in plan.planned), devices[0])


def _fastest(rows: Sequence[Row]) -> dict[Problem, Row]:
    """Of each problem; slower rows are overwritten."""
    ordered = sorted(rows, key=lambda row: row.median, reverse=True)
    return {_problem(row.params): row for row in ordered}


def _problem(params: Mapping[str, Any]) -> Problem:
    return frozenset((name, value) for name, value in params.items() if name != "backend")


def _row(planned: Planned, fastest: Mapping[Problem, Row]) -> Row | None:
    wanted = (_problem({"routine": of.name, **params.as_json()}) for of, params in planned.problems)
    found = [fastest[problem] for problem in wanted if problem in fastest]
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
