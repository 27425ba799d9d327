"""A weighted sum of cases as a run stores it and as processes hand it on: its kernels, and the rows that time them.

It is a model's step, which `models/` plans, or the calls of a recording, which `traffic/` does; `models/` sums both up.
Only the data is here, since it is a part of the run's file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_flashinfer_perf.api import Run, fields

NAME = "step"  # of the part of a run


@dataclass(frozen=True, kw_only=True)
class StepKernel:
    """One kernel of a step on one GPU; its `weight_bytes` are those of all its `count` calls."""

    name: str
    count: int = 1
    problems: tuple[Mapping[str, Any], ...] = ()  # a routine and its parameters: any one of them does the work
    cases: tuple[str, ...] = ()  # of each problem, as ids have it without the backend
    gap: str = ""  # why no case measures it
    weight_bytes: float = 0.0

    def times(self, count: int) -> StepKernel:
        return replace(self, count=self.count * count, weight_bytes=self.weight_bytes * count)

    def joined(self, other: StepKernel) -> StepKernel:
        """Add the calls of the same kernel in another layer."""
        return replace(self, count=self.count + other.count, weight_bytes=self.weight_bytes + other.weight_bytes)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise fields.FieldError(f"{self.name}: count must be at least 1, got {self.count}")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a recording says of the program that made the calls."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """All kernels of a step; `name` is the model's, with its numbers of GPUs.

    Of a recording it has the calls instead, each kernel named by its API, and `name` is the file's.
    """

    name: str
    title: str
    kernels: tuple[StepKernel, ...]
    coverage: tuple[str, ...] = ()  # what has a case and what has none, in sentences
    traffic: Traffic | None = None

    @property
    def gaps(self) -> list[StepKernel]:
        return [kernel for kernel in self.kernels if kernel.gap]


def plan_of(run: Run) -> StepPlan | None:
    """The sum that this run has measured."""
    return run.part(NAME, StepPlan)
