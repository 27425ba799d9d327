"""The process that evaluates: build a solution, check its answers, time it. A crash ends only this process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus, Solution, Workload

from pytest_flashinfer_perf.config.settings import Measuring
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.running.child_process import Answer
from pytest_flashinfer_perf.timing.run import Timing
from pytest_flashinfer_perf.trace_sets.config import Resolved
from pytest_flashinfer_perf.trace_sets.evaluator_choice import evaluator_for
from pytest_flashinfer_perf.trace_sets.evaluators import Baseline, Callee, Evaluator, IncorrectError, Task
from pytest_flashinfer_perf.trace_sets.originals import ReplacedError, originals

SPOILT = (EvaluationStatus.RUNTIME_ERROR, None)  # after these a process is not used again


@dataclass(frozen=True)
class Job:
    """A solution and the workload that it is evaluated on."""

    definition: Definition
    workload: Workload
    solution: Solution
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
    """The result of a job. `status` is None for errors that are not the solution's fault."""

    status: EvaluationStatus | None
    message: str = ""
    correctness: Correctness | None = None
    timings: tuple[Timing, ...] = ()
    reference_ms: float = 0.0
    peak_memory_bytes: int | None = None
    log: str = ""


class Baselines:
    """Caches the last reference answers, since the solutions of a workload are evaluated one after the other."""

    def __init__(self) -> None:
        self._question = ""
        self._last: Baseline | None = None

    def baseline(self, job: Job, evaluator: Evaluator) -> Baseline:
        if self._last is None or self._question != job.question:
            self._last = None  # release its memory before the next one
            self._last, self._question = evaluator.build_baseline(_task(job)), job.question
        return self._last


@dataclass(frozen=True)
class Solutions:
    """The child's program: each worker evaluates one job if it is `isolated`, else jobs until one spoils it."""

    isolated: bool

    def load(self) -> Callable[[], Callable[[Job], Answer]]:
        """This module has imported all that is needed."""
        return self._start

    def _start(self) -> Callable[[Job], Answer]:
        torch.set_grad_enabled(mode=False)
        baselines = Baselines()

        def evaluate(job: Job) -> Answer:
            result = evaluated(job, baselines)
            return Answer(result, retires=self.isolated or result.status in SPOILT)

        return evaluate


def evaluated(job: Job, baselines: Baselines) -> EvaluationResult:
    reading = originals(devices.find(job.device))
    try:
        evaluator = evaluator_for(job.definition, job.evaluators)
        baseline = baselines.baseline(job, evaluator)
        reading.verify()
    except Exception as error:  # noqa: BLE001 - a reference is arbitrary code
        return EvaluationResult(None, f"{job.definition.name}: its reference or its inputs fail: {_message(error)}")
    try:
        runnable = BuilderRegistry.get_instance().build(job.definition, job.solution)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - so is a solution
        return EvaluationResult(EvaluationStatus.COMPILE_ERROR, _message(error))
    try:
        return _judged(evaluator, _task(job), Callee(runnable, _task(job)), baseline)
    except IncorrectError as wrong:
        return EvaluationResult(wrong.status, str(wrong), wrong.correctness)
    except ReplacedError as error:
        return EvaluationResult(None, str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return EvaluationResult(EvaluationStatus.RUNTIME_ERROR, _message(error))


def _judged(evaluator: Evaluator, task: Task, solution: Callee, baseline: Baseline) -> EvaluationResult:
    if task.device.is_gpu:
        torch.cuda.reset_peak_memory_stats(task.device.torch)
    correctness = evaluator.check_correctness(task, solution, baseline)
    reading = originals(task.device)
    reading.restore()
    timings = tuple(evaluator.eval_performance(task, solution, baseline))
    reading.verify()
    peak = torch.cuda.max_memory_allocated(task.device.torch) if task.device.is_gpu else None
    return EvaluationResult(EvaluationStatus.PASSED, "", correctness, timings, baseline.latency_ms, peak)


def _task(job: Job) -> Task:
    device = devices.find(job.device)
    return Task(job.definition, job.workload, job.root, job.config, job.seed, device, job.measuring)


def _message(error: BaseException) -> str:
    traceback.print_exception(error)
    return f"{type(error).__name__}: {error}"
