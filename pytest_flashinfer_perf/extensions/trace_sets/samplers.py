"""Evaluator for sampling: tokens must be allowed, and as frequent as their probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus
from torch import Tensor

from pytest_flashinfer_perf.extensions.trace_sets.evaluators import Baseline, DefaultEvaluator, latency_ms, wrong
from pytest_flashinfer_perf.extensions.trace_sets.solution import Answer, Inputs, Solution, SolutionError, Task

VALIDATION_TRIALS = 100
TVD_THRESHOLD = 0.2
DRAWS = 500_000  # of each distribution
DRAWS_A_CALL = 10_000
BOUNDARY = 5e-2  # how far beyond top_p rounding may take a kernel's running sum


class SamplingEvaluator(DefaultEvaluator):
    def can_evaluate(self, definition: Definition) -> bool:
        return bool(definition.op_type == "sampling")

    def exchangeable(self, task: Task) -> list[int]:  # noqa: ARG002 - of any
        """None: the same token may be right for any inputs."""
        return []

    def expected(self, task: Task, inputs: Inputs) -> Answer:
        """The distribution, since the reference's own draws are only a few samples of it."""
        chosen = torch.where(allowed_tokens(task, inputs), _probs(task, inputs), 0.0)
        return (chosen / chosen.sum(-1, keepdim=True),)

    def build_baseline(self, task: Task) -> Baseline:
        inputs = self.inputs(task, 0)
        return Baseline([inputs], [self.expected(task, inputs)], latency_ms(task, [inputs]))

    def check_correctness(self, task: Task, solution: Solution, baseline: Baseline) -> Correctness:
        inputs, (expected,) = baseline.inputs[0], baseline.answers[0]
        for _ in range(task.config.extra.get("sampling_validation_trials", VALIDATION_TRIALS)):
            self.judged(task, inputs, solution.answer(inputs), ())
        return _judged(task, frequencies(task, solution, inputs), expected)

    def judged(self, task: Task, inputs: Inputs, got: Answer, want: Answer) -> Correctness:  # noqa: ARG002 - a token is allowed or not
        _validate(got[0], allowed_tokens(task, inputs, BOUNDARY))
        return Correctness()


def _probs(task: Task, inputs: Inputs) -> Tensor:
    probs: Tensor = _named(task, inputs)["probs"]
    return probs.float().reshape(-1, probs.shape[-1])


def _named(task: Task, inputs: Inputs) -> dict[str, Any]:
    return dict(zip(task.definition.inputs, inputs, strict=True))


def allowed_tokens(task: Task, inputs: Inputs, boundary: float = 0.0) -> Tensor:
    """The tokens at least as probable as the k-th, and those before which the sum has not reached top_p."""
    probs, named = _probs(task, inputs), _named(task, inputs)
    allowed = torch.ones_like(probs, dtype=torch.bool)
    ordered, order = probs.sort(-1, descending=True)
    if "top_k" in named:
        k = torch.as_tensor(named["top_k"], device=probs.device).reshape(-1, 1).expand(len(probs), 1).long()
        limited = (k > 0) & (k < probs.shape[-1])
        kth = ordered.gather(-1, (k - 1).clamp(0, probs.shape[-1] - 1))
        allowed &= ~limited | (probs >= kth)
    if "top_p" in named:
        p = torch.as_tensor(named["top_p"], device=probs.device).reshape(-1, 1).expand(len(probs), 1)
        before = ordered.cumsum(-1) - ordered
        inside = torch.zeros_like(allowed).scatter(-1, order, before < p + boundary)
        allowed &= ~((p > 0) & (p < 1)) | inside
    return allowed


def _validate(samples: Tensor, allowed: Tensor) -> None:
    tokens = samples.reshape(-1).long()
    outside = (tokens < 0) | (tokens >= allowed.shape[-1])
    if bool(outside.any()):
        raise wrong(f"token {int(tokens[outside][0])} is outside the vocabulary of {allowed.shape[-1]}")
    rows = torch.arange(len(tokens), device=tokens.device) % len(allowed)
    fine = allowed[rows, tokens]
    if not bool(fine.all()):
        at = int((~fine).nonzero()[0])
        raise wrong(f"token {int(tokens[at])} of row {int(rows[at])} is not among those that top_k and top_p allow")


def frequencies(task: Task, solution: Solution, inputs: Inputs) -> Tensor:
    """The frequency of each token per row, from calls that repeat the rows many times."""
    probs = _probs(task, inputs)
    counts = torch.zeros(probs.shape, dtype=torch.int64, device=probs.device)
    rows = torch.arange(len(probs), device=probs.device)
    for tokens in _draws(task, solution, inputs, len(probs)):
        flat = rows.repeat(len(tokens) // len(probs)) * probs.shape[-1] + tokens
        counts += flat.bincount(minlength=counts.numel()).reshape(counts.shape)
    return counts / counts.sum(-1, keepdim=True)


def _draws(task: Task, solution: Solution, inputs: Inputs, rows: int) -> Iterator[Tensor]:
    repeats = max(1, DRAWS_A_CALL // rows)
    axis = next(iter(task.definition.inputs["probs"].shape))
    axes, wide = task.workload.axes, inputs
    if axis in task.definition.var_axes:
        axes, wide = {**axes, axis: rows * repeats}, [_repeated(value, rows, repeats) for value in inputs]
    drawn = 0
    for _ in range(DRAWS):
        if drawn >= DRAWS:
            return
        tokens = solution.answer(wide, axes=axes)[0].reshape(-1).long()
        _validate(tokens, torch.ones((1, _probs(task, inputs).shape[-1]), dtype=torch.bool, device=tokens.device))
        drawn += len(tokens) // rows
        yield tokens


def _repeated(value: Any, rows: int, repeats: int) -> Any:
    if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[0] != rows:
        return value
    return value.repeat(repeats, *([1] * (value.dim() - 1)))


def _judged(task: Task, measured: Tensor, expected: Tensor) -> Correctness:
    """Compare frequencies by the largest total variation distance of a row."""
    error = (measured - expected).abs()
    tvds = (0.5 * error.sum(-1)).tolist()
    correctness = Correctness(
        max_relative_error=(error / (expected + 1e-8)).max().item(),
        max_absolute_error=error.max().item(),
        extra={"tvd": max(tvds), "tvds_per_batch": tvds, "matched_ratio": 1.0},
    )
    threshold = task.config.extra.get("sampling_tvd_threshold", TVD_THRESHOLD)
    if max(tvds) > threshold:
        message = f"total variation distance {max(tvds):.4g}, at most {threshold:g} passes"
        raise SolutionError(EvaluationStatus.INCORRECT_NUMERICAL, message, correctness)
    return correctness
