"""The process that judges solutions: it has the inputs and the reference's answers, and imports no solution."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

import torch
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus, Workload
from flashinfer_bench.data import Solution as Sources

from pytest_flashinfer_perf.api import Measuring, devices, timing
from pytest_flashinfer_perf.extensions.fuzz import child_process
from pytest_flashinfer_perf.extensions.trace_sets.config import Resolved
from pytest_flashinfer_perf.extensions.trace_sets.evaluators import (
    Baseline,
    DefaultEvaluator,
    LowBitEvaluator,
    SparseAttentionEvaluator,
    TopkIndexerEvaluator,
)
from pytest_flashinfer_perf.extensions.trace_sets.foreign_evaluators import FlashInferBenchEvaluator, is_theirs
from pytest_flashinfer_perf.extensions.trace_sets.forking import Nursery, NurseryError, Process
from pytest_flashinfer_perf.extensions.trace_sets.samplers import SamplingEvaluator
from pytest_flashinfer_perf.extensions.trace_sets.shared import Memory
from pytest_flashinfer_perf.extensions.trace_sets.solution import ImpossibleTimeError, Solution, SolutionError, Task
from pytest_flashinfer_perf.extensions.trace_sets.solver import Solver

SPOILT = (EvaluationStatus.RUNTIME_ERROR, EvaluationStatus.TIMEOUT, None)  # a process is not used again after these


@dataclass(frozen=True)
class Job:
    """A solution and the workload that it is evaluated on."""

    definition: Definition
    workload: Workload
    solution: Sources
    root: Path
    config: Resolved
    evaluators: tuple[str, ...] = ()
    seed: int = 42
    device: str = "cpu"
    measuring: Measuring = field(default_factory=Measuring)

    @property
    def axes(self) -> dict[str, int]:
        return {**self.definition.const_axes, **self.workload.axes}

    @property
    def question(self) -> str:
        """A key for jobs with the same inputs and reference answers."""
        return repr((self.definition.name, self.workload, self.config, self.evaluators, self.seed, self.device))


@dataclass(frozen=True)
class EvaluationResult:
    """The result of a job. `status` is None where there is no verdict: a reference that fails, an impossible time."""

    status: EvaluationStatus | None
    message: str = ""
    correctness: Correctness | None = None
    timings: tuple[timing.Timing, ...] = ()
    reference_ms: float = 0.0
    peak_memory_bytes: int | None = None
    log: str = ""


@dataclass(frozen=True)
class Judging:
    """The judge's program. Each solution has a process of its own if it is `isolated`, else one until it is spoilt."""

    isolated: bool

    def load(self) -> Callable[[], Callable[[Job], child_process.Answer]]:
        """Make the judge; this module has imported all that it needs."""
        return lambda: Judge(isolated=self.isolated)


class Judge:
    def __init__(self, *, isolated: bool) -> None:
        self._isolated = isolated
        self._nursery = Nursery(Solver)  # first of all: a process that has opened a GPU cannot be forked
        torch.set_grad_enabled(mode=False)
        self._baseline: Baseline | None = None
        self._question = ""
        self._process: Process | None = None
        self._memory: Memory | None = None

    def __call__(self, job: Job) -> child_process.Answer:
        """The answer to a job. This process ends after what may be wrong with itself."""
        try:
            return child_process.Answer(self._evaluated(job))
        except NurseryError as error:
            return child_process.Answer(EvaluationResult(EvaluationStatus.RUNTIME_ERROR, str(error)), retires=True)
        except Exception as error:  # noqa: BLE001 - a reference, an evaluator and a data set are arbitrary
            traceback.print_exception(error)
            sentence = f"{job.definition.name}: its reference, its inputs or its evaluator fail: "
            return child_process.Answer(
                EvaluationResult(None, f"{sentence}{type(error).__name__}: {error}"), retires=True
            )

    def _evaluated(self, job: Job) -> EvaluationResult:
        device = devices.find(job.device)
        task = Task(job.definition, job.workload, job.root, job.config, job.seed, device, job.measuring)
        evaluator = evaluator_for(job.definition, job.evaluators)
        if self._baseline is None or self._question != job.question:
            self._baseline = None  # release its memory before the next one
            self._baseline, self._question = evaluator.build_baseline(task), job.question
        self._memory = self._memory or Memory(device)
        self._process = self._process or self._nursery.process()
        self._process.deadline = time.perf_counter() + job.config.timeout_seconds
        solution = Solution(task, self._process, self._memory)
        result = _result(evaluator, job.solution, solution, self._baseline)
        if self._isolated or result.status in SPOILT:
            self._process.end()
            self._process = None
        return result


def _result(evaluator: DefaultEvaluator, sources: Sources, solution: Solution, baseline: Baseline) -> EvaluationResult:
    try:
        solution.build(sources)
        correctness = evaluator.check_correctness(solution.task, solution, baseline)
        timings = tuple(evaluator.eval_performance(solution.task, solution, baseline))
    except SolutionError as error:
        return EvaluationResult(error.status, str(error), error.correctness)
    except ImpossibleTimeError as error:
        return EvaluationResult(None, str(error))
    passed = EvaluationResult(EvaluationStatus.PASSED, "", correctness, timings, baseline.latency_ms)
    return replace(passed, peak_memory_bytes=solution.peak_memory_bytes)


# Choose the evaluator for the solutions of a definition.


def evaluator_for(definition: Definition, own: Sequence[str]) -> DefaultEvaluator:
    """The first evaluator that accepts the definition: the user's own, then ours."""
    ours = (SamplingEvaluator, LowBitEvaluator, SparseAttentionEvaluator, TopkIndexerEvaluator, DefaultEvaluator)
    evaluators = (*map(_imported, own), *(kind() for kind in ours))
    return next(one for one in evaluators if one.can_evaluate(definition))


def _imported(name: str) -> DefaultEvaluator:
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise TypeError(f"evaluators: {name!r} must be module:Class: {error}") from error
    if isinstance(kind, type) and issubclass(kind, DefaultEvaluator):
        return kind()
    if is_theirs(kind):
        return FlashInferBenchEvaluator(kind)
    raise TypeError(f"evaluators: {name!r} is not an evaluator of FlashInfer-Bench")
