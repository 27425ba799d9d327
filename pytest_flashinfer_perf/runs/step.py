"""A model's step as a run stores it: how often each kernel runs, and which rows measure it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_flashinfer_perf.runs.fields import FieldError


@dataclass(frozen=True, kw_only=True)
class StepKernel:
    name: str
    count: int
    problems: tuple[Mapping[str, Any], ...] = ()  # parameters of rows: any one of them does the work
    gap: str = ""  # why no case measures it
    note: str = ""
    weight_bytes: float = 0.0  # of all its calls in the step

    def __post_init__(self) -> None:
        if self.count < 1:
            raise FieldError(f"{self.name}: count must be at least 1, got {self.count}")


@dataclass(frozen=True, kw_only=True)
class ModelStep:
    name: str  # of the model, with its numbers of GPUs
    title: str
    kernels: tuple[StepKernel, ...]
    coverage: tuple[str, ...] = ()  # what has a case and what has none, in sentences
