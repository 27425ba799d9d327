"""Evaluators written for FlashInfer-Bench: they judge answers as they do there, and times are measured here."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import torch
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.data import Correctness, Definition
from torch import Tensor

from pytest_flashinfer_perf.extensions.trace_sets.evaluators import Baseline, DefaultEvaluator, latency_ms
from pytest_flashinfer_perf.extensions.trace_sets.solution import Answer, Inputs, Solution, SolutionError, Task

CONFIG_FIELDS = {field.name for field in fields(BenchmarkConfig)}


class Drawn(list[Any]):
    """Inputs, with the answers that the evaluator expects to them."""

    answers: tuple[Tensor, ...] = ()


class FlashInferBenchEvaluator(DefaultEvaluator):
    """One of their classes, all of whose methods are class methods. Its `eval_performance` is not called."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def can_evaluate(self, definition: Definition) -> bool:
        return bool(self._kind.can_evaluate(definition))

    def inputs(self, task: Task, trial: int) -> Drawn:
        return self._drawn(task, task.seed + trial, 1)[0]

    def expected(self, task: Task, inputs: Inputs) -> Answer:  # noqa: ARG002 - drawn together
        assert isinstance(inputs, Drawn)
        return inputs.answers

    def build_baseline(self, task: Task) -> Baseline:
        drawn = self._drawn(task, task.seed, task.config.num_trials)
        return Baseline(drawn, [inputs.answers for inputs in drawn], latency_ms(task, drawn))

    def check_correctness(self, task: Task, solution: Solution, baseline: Baseline) -> Correctness:
        stopped: list[SolutionError] = []

        def answer(inputs: Inputs) -> Answer:
            try:
                return solution.answer(inputs, axes=task.definition.get_axes_values_from_inputs(inputs))
            except SolutionError as error:
                stopped.append(error)  # which their evaluators take for any other error
                raise

        try:
            return self._judged(task, answer, solution.writes, baseline.inputs, baseline.answers)
        except SolutionError as error:
            raise stopped[0] if stopped else error from None

    def judged(self, task: Task, inputs: Inputs, got: Answer, want: Answer) -> Correctness:
        """Judge one answer, but not that of a sampler, which takes many."""
        if task.definition.op_type == "sampling":
            return Correctness()
        return self._judged(task, lambda _inputs: got, False, [inputs], [want])

    def _drawn(self, task: Task, seed: int, trials: int) -> list[Drawn]:
        torch.manual_seed(seed)
        baseline = self._kind.build_baseline(
            definition=task.definition,
            workload=task.workload,
            cfg=_config(task, num_trials=trials, profile_baseline=False),
            device=str(task.device.torch),
            trace_set_root=task.root,
        )
        drawn = [Drawn(inputs) for inputs in baseline.inputs]
        for one, answers in zip(drawn, baseline.outputs, strict=True):
            one.answers = tuple(answers)
        return drawn

    def _judged(
        self,
        task: Task,
        answer: Callable[[Inputs], Answer],
        writes: bool,
        contents: Sequence[Inputs],
        answers: Sequence[Answer],
    ) -> Correctness:
        with tempfile.NamedTemporaryFile("r") as log:
            correctness, evaluation = self._kind.check_correctness(
                definition=task.definition,
                sol_runnable=_Runnable(task.definition, answer, writes),
                inputs=[list(inputs) for inputs in contents],
                ref_outputs=[list(want) for want in answers],
                cfg=_config(task),
                log_path=log.name,
                device=str(task.device.torch),
            )
        if evaluation is not None:
            raise SolutionError(evaluation.status, evaluation.log, correctness or evaluation.correctness)
        return correctness or Correctness()


class _Runnable:
    """What their evaluators call: the solution in its own process, or an answer that it gave."""

    def __init__(self, definition: Definition, answer: Callable[[Inputs], Answer], writes: bool) -> None:
        self._inputs = len(definition.inputs)
        self._answer = answer
        self.metadata = SimpleNamespace(destination_passing_style=writes, definition=definition)

    def __call__(self, *arguments: Any) -> Any:
        got = self._answer(arguments[: self._inputs])
        if self.metadata.destination_passing_style:
            for place, value in zip(arguments[self._inputs :], got, strict=True):
                place.copy_(value)
            return None
        return got if len(got) > 1 else got[0]


def is_theirs(kind: Any) -> bool:
    """Whether a class has the methods of their evaluators with their parameters."""
    method = getattr(kind, "check_correctness", None)
    return callable(method) and "sol_runnable" in inspect.signature(method).parameters


def _config(task: Task, **others: Any) -> Any:
    """Their configuration of one evaluation, with parameters of `extra` that it knows."""
    values = {**task.config.extra, **task.config.model_dump(exclude={"extra"}), **others}
    values["timeout_seconds"] = max(1, round(task.config.timeout_seconds))
    return BenchmarkConfig(**{name: value for name, value in values.items() if name in CONFIG_FIELDS})
