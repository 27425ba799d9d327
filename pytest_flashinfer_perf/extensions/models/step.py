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
SUMMED = ("count", "weight_bytes", "parameters", "flops")


@dataclass(frozen=True, kw_only=True)
class StepKernel:
    """One kernel of a step on one GPU; bytes, parameters and FLOPs are those of all its `count` calls."""

    name: str
    count: int = 1
    problems: tuple[Mapping[str, Any], ...] = ()  # a routine and its parameters: any one of them does the work
    cases: tuple[str, ...] = ()  # of each problem, as ids have it without the backend
    gap: str = ""  # why no case measures it
    note: str = ""
    stored: str = "bf16"  # the type of its weights
    weight_bytes: float = 0.0
    parameters: int = 0
    flops: float = 0.0

    def times(self, count: int) -> StepKernel:
        return replace(self, **{name: getattr(self, name) * count for name in SUMMED})

    def joined(self, other: StepKernel) -> StepKernel:
        """This kernel and the calls of another layer's that is the same."""
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in SUMMED})

    def __post_init__(self) -> None:
        if self.count < 1:
            raise fields.FieldError(f"{self.name}: count must be at least 1, got {self.count}")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a recording says of the program that made the calls."""

    seconds: float
    kernels: Mapping[str, float]  # the GPU's seconds in each, if it was timed
    runs: Mapping[str, int]  # how often each of them ran


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
