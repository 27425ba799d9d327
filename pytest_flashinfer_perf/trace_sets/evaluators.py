"""Evaluators check the answers of solutions and time them; DefaultEvaluator is that of most operations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from flashinfer_bench.compile import BuilderRegistry, Runnable
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus, Workload
from torch import Tensor

from pytest_flashinfer_perf.checking import check
from pytest_flashinfer_perf.config.settings import Measuring
from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.machine.devices import Device
from pytest_flashinfer_perf.timing import cold
from pytest_flashinfer_perf.timing.run import Timing, run
from pytest_flashinfer_perf.timing.target import Target
from pytest_flashinfer_perf.trace_sets import inputs
from pytest_flashinfer_perf.trace_sets.config import Resolved


@dataclass(frozen=True)
class Task:
    """One workload of a definition, with its configuration and device."""

    definition: Definition
    workload: Workload
    root: Path
    config: Resolved
    seed: int
    device: Device
    measuring: Measuring

    @property
    def trials(self) -> range:
        return range(self.config.num_trials)


@dataclass(frozen=True)
class Baseline:
    """The inputs and reference answers of each trial, and the latency of the reference."""

    inputs: list[list[Any]]
    answers: list[tuple[Tensor, ...]]
    latency_ms: float


class IncorrectError(FlashinferPerfError):
    """A solution is incorrect: its status, and the reason."""

    def __init__(self, status: EvaluationStatus, message: str, correctness: Correctness | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.correctness = correctness


@dataclass(frozen=True)
class Callee:
    """A built solution or reference. It gets output tensors to write, or returns them, as its metadata states."""

    runnable: Runnable
    task: Task

    @property
    def writes(self) -> bool:
        return bool(self.runnable.metadata.destination_passing_style)

    def destinations(self) -> tuple[Tensor, ...]:
        if not self.writes:
            return ()
        definition, where = self.task.definition, self.task.device.torch
        shapes = definition.get_output_shapes(self.task.workload.axes)
        made = tuple(
            torch.empty(shape or (), dtype=dtype, device=where)
            for shape, dtype in zip(shapes, definition.torch_output_dtypes, strict=True)
        )
        check.poison(made)
        return made

    def answer(self, given: Sequence[Any], fewest: int | None = None) -> tuple[Tensor, ...]:
        """Call it with copies of the inputs, so that it cannot change those of others."""
        written = self.destinations()
        returned = self.runnable(*cold.clone(list(given), set()), *written)
        self.task.device.synchronize()
        return written or self.tensors(returned, fewest)

    def tensors(self, returned: Any, fewest: int | None = None) -> tuple[Tensor, ...]:
        given = returned if isinstance(returned, (tuple, list)) else (returned,)
        dtypes = self.task.definition.torch_output_dtypes
        if not (fewest or len(dtypes)) <= len(given) <= len(dtypes):
            raise ValueError(f"returned {len(given)} values, the definition has {len(dtypes)} outputs")
        where = self.task.device.torch
        return tuple(
            value.to(where) if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype, device=where)
            for value, dtype in zip(given, dtypes, strict=False)
        )


class Evaluator(ABC):
    """Subclass it, or DefaultEvaluator, and name it in the config's `evaluators` as `module:Class`."""

    @abstractmethod
    def can_evaluate(self, definition: Definition) -> bool: ...

    @abstractmethod
    def build_baseline(self, task: Task) -> Baseline: ...

    @abstractmethod
    def check_correctness(self, task: Task, solution: Callee, baseline: Baseline) -> Correctness:
        """Raise IncorrectError if an answer is wrong."""

    @abstractmethod
    def eval_performance(self, task: Task, solution: Callee, baseline: Baseline) -> list[Timing]:
        """A timing for each trial."""


class DefaultEvaluator(Evaluator):
    """Compares element by element: wrong is what differs by more than atol and by more than rtol of itself."""

    required_matched_ratio = 1.0
    fewest_outputs: int | None = None

    def can_evaluate(self, definition: Definition) -> bool:  # noqa: ARG002 - accepts every definition
        return True

    def inputs(self, task: Task, trial: int) -> list[Any]:
        return inputs.drawn(task.definition, task.workload, task.root, task.seed + trial, task.device.torch)

    def build_baseline(self, task: Task) -> Baseline:
        reference = Callee(BuilderRegistry.get_instance().build_reference(task.definition), task)
        drawn = [self.inputs(task, trial) for trial in task.trials]
        return Baseline(drawn, [reference.answer(given) for given in drawn], self.latency_ms(task, reference, drawn))

    def latency_ms(self, task: Task, reference: Callee, drawn: list[list[Any]]) -> float:
        if not task.config.profile_baseline:
            return 0.0
        return 1e3 * fmean(timed(task, reference, given).median for given in drawn)

    def check_correctness(self, task: Task, solution: Callee, baseline: Baseline) -> Correctness:
        trials = zip(baseline.inputs, baseline.answers, strict=True)
        seen = [self.judged(task, given, solution.answer(given, self.fewest_outputs), want) for given, want in trials]
        return Correctness(
            max_relative_error=max(s.max_relative_error for s in seen),
            max_absolute_error=max(s.max_absolute_error for s in seen),
            extra=min((s.extra for s in seen), key=lambda extra: extra["matched_ratio"]),
        )

    def judged(self, task: Task, given: list[Any], got: tuple[Tensor, ...], want: tuple[Tensor, ...]) -> Correctness:  # noqa: ARG002 - subclasses use the inputs
        required = task.config.required_matched_ratio or self.required_matched_ratio
        names = list(task.definition.outputs)
        seen = [compared(n, g, w, task.config, required) for n, g, w in zip(names, got, want, strict=False)]
        return max(seen, key=lambda one: (-one.extra["matched_ratio"], one.max_absolute_error))

    def eval_performance(self, task: Task, solution: Callee, baseline: Baseline) -> list[Timing]:
        verified = partial(self.again, task, solution)
        trials = zip(baseline.inputs, baseline.answers, strict=True)
        return [timed(task, solution, given, partial(verified, given, want)) for given, want in trials]

    def again(self, task: Task, solution: Callee, given: list[Any], want: tuple[Tensor, ...], last: Any) -> None:
        """Check the answer of a timed call."""
        self.judged(task, given, solution.tensors(last, self.fewest_outputs), want)


class LowBitEvaluator(DefaultEvaluator):
    """Allows a share of elements to be wrong, since narrow types are rounded in between."""

    required_matched_ratio = 0.95

    def can_evaluate(self, definition: Definition) -> bool:
        return definition.op_type == "lowbit" or "moe_fp8_block_scale" in definition.name


def timed(task: Task, callee: Callee, given: list[Any], verify: Callable[[Any], object] | None = None) -> Timing:
    """Time a callee. `verify` checks the last answer, unless calls change their inputs."""
    written, own = callee.destinations(), cold.clone(list(given), set())
    last: list[Any] = [None]

    def call(*args: Any) -> None:
        last[0] = callee.runnable(*args)

    def check_last_call() -> None:
        changed = [n for n, a, b in zip(task.definition.inputs, own, given, strict=True) if not _same(a, b)]
        if changed:
            print(f"changes its inputs {', '.join(changed)}: answers of timed calls are not checked")  # noqa: T201
        elif verify is not None:
            verify(written or last[0])

    target = Target(call, (*own, *written), outputs=written)
    counts = replace(task.measuring, iters=task.config.iterations, warmup=task.config.warmup_runs)
    return run(
        target,
        counts,
        task.device,
        cuda_graph=False,
        verify=lambda timed, _work: check_last_call() if timed is target else None,
    )


def _same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor):
        return bool(one == other)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.itemsize]
    return torch.equal(one.contiguous().view(bits), other.contiguous().view(bits))


def compared(name: str, got: Tensor, want: Tensor, config: Resolved, required: float) -> Correctness:
    """Compare an output; infinities and NaN are right where the reference has the same."""
    if got.shape != want.shape:
        sizes = f"{tuple(got.shape)} instead of {tuple(want.shape)}"
        raise IncorrectError(EvaluationStatus.INCORRECT_SHAPE, f"{name}: shape {sizes}")
    if got.dtype != want.dtype:
        raise IncorrectError(EvaluationStatus.INCORRECT_DTYPE, f"{name}: {got.dtype} instead of {want.dtype}")
    x, y = got.double(), want.double()
    same = (x == y) | (x.isnan() & y.isnan())
    strange = ~x.isfinite() & ~same
    if bool(strange.any()):
        return _wrong(f"{name}: {int(strange.sum())} elements are NaN or infinite", x[strange][0].abs().item())
    error = torch.where(same, 0.0, torch.where(y.isfinite(), (x - y).abs(), math.inf))
    relative = torch.where(same, 0.0, torch.where(y.isfinite(), error / (y.abs() + 1e-8), math.inf))
    matched = 1.0 - ((error > config.atol) & (relative > config.rtol)).double().mean().item() if x.numel() else 1.0
    seen = Correctness(
        max_relative_error=relative.max().item() if x.numel() else 0.0,
        max_absolute_error=error.max().item() if x.numel() else 0.0,
        extra={"matched_ratio": matched, **_hidden(name, y, config)},
    )
    if matched < required:
        share = f"{100 * matched:.4g} % of elements match, {100 * required:g} % must"
        raise IncorrectError(EvaluationStatus.INCORRECT_NUMERICAL, f"{name}: {share}", seen)
    return seen


def _wrong(message: str, error: float) -> Correctness:
    seen = Correctness(max_relative_error=error, max_absolute_error=error)
    raise IncorrectError(EvaluationStatus.INCORRECT_NUMERICAL, message, seen)


def _hidden(name: str, want: Tensor, config: Resolved) -> dict[str, str]:
    """A note if atol exceeds the size of the answers, so that the check would accept zeros."""
    finite = want[want.isfinite()]
    size = finite.square().mean().sqrt().item() if finite.numel() else math.inf
    if 0.0 < size < config.atol:
        return {
            "unchecked": f"{name}: answers of rms {size:.2g} are smaller than atol {config.atol:g}: zeros would pass"
        }
    return {}
