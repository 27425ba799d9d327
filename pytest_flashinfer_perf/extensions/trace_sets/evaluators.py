"""Evaluators draw a workload's inputs, check the answers of solutions and time them.

`DefaultEvaluator` is that of most operations; those of low precision and of DeepSeek's sparse attention follow it, and
then how inputs are made. Token samplers have theirs in samplers.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from flashinfer_bench.compile import BuilderRegistry
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus, SafetensorsInput, Workload
from safetensors import safe_open
from torch import Tensor

from pytest_flashinfer_perf.api import FlashinferPerfError, Target
from pytest_flashinfer_perf.api import timing as core_timing
from pytest_flashinfer_perf.extensions.trace_sets import outside_clock
from pytest_flashinfer_perf.extensions.trace_sets.config import Resolved
from pytest_flashinfer_perf.extensions.trace_sets.siblings import Siblings, siblings
from pytest_flashinfer_perf.extensions.trace_sets.solution import Answer, Inputs, Solution, SolutionError, Task


@dataclass(frozen=True)
class Baseline:
    """The inputs and reference answers of each trial, the latency of the reference, and what siblings change."""

    inputs: Sequence[Inputs]
    answers: list[Answer]
    latency_ms: float
    siblings: Siblings = field(default_factory=Siblings)


def _reference(task: Task) -> Callable[..., Any]:
    """The reference of a definition, which runs in this process."""
    built: Callable[..., Any] = BuilderRegistry.get_instance().build_reference(task.definition)
    return built


class DefaultEvaluator:
    """Compares element by element: wrong is what differs by more than atol and by more than rtol of itself."""

    required_matched_ratio = 1.0
    fewest_outputs: int | None = None

    def can_evaluate(self, definition: Definition) -> bool:  # noqa: ARG002 - accepts every definition
        return True

    def inputs(self, task: Task, trial: int) -> list[Any]:
        return drawn(task.definition, task.workload, task.root, task.seed + trial, task.device.torch)

    def expected(self, task: Task, inputs: Inputs) -> Answer:
        returned = _called_with_copies(task, inputs)()
        task.device.synchronize()
        values = returned if isinstance(returned, (tuple, list)) else (returned,)
        declared = task.outputs()
        answer = tuple(
            value if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype, device=task.device.torch)
            for value, (_, dtype) in zip(values, declared, strict=True)
        )
        for name, value, like in zip(task.definition.outputs, answer, declared, strict=True):
            if (tuple(value.shape), value.dtype) != like:
                raise DataError(f"{name}: the reference answers {tuple(value.shape)} of {value.dtype}, not as declared")
        return answer

    def build_baseline(self, task: Task) -> Baseline:
        drawn = [self.inputs(task, trial) for trial in task.trials]
        answers = [self.expected(task, inputs) for inputs in drawn]
        return Baseline(drawn, answers, latency_ms(task, drawn), self._siblings(task, drawn[0], answers[0]))

    def exchangeable(self, task: Task) -> list[int]:
        """The positions of inputs whose elements are drawn one like the other; none if a subclass draws inputs."""
        if type(self).inputs is not DefaultEvaluator.inputs:
            return []
        return randoms(task)

    def _siblings(self, task: Task, inputs: Inputs, answer: Answer) -> Siblings:
        def differs(other: Inputs) -> bool:
            """Whether the answer to the inputs is wrong for the others."""
            try:
                self.judged(task, other, answer, self.expected(task, other))
            except SolutionError:
                return True
            return False

        return siblings(inputs, self.exchangeable(task), differs)

    def check_correctness(self, task: Task, solution: Solution, baseline: Baseline) -> Correctness:
        trials = zip(baseline.inputs, baseline.answers, strict=True)
        judgements = [
            self.judged(task, inputs, solution.answer(inputs, self.fewest_outputs), want) for inputs, want in trials
        ]
        return Correctness(
            max_relative_error=max(s.max_relative_error for s in judgements),
            max_absolute_error=max(s.max_absolute_error for s in judgements),
            extra=min((s.extra for s in judgements), key=lambda extra: extra["matched_ratio"]),
        )

    def judged(self, task: Task, inputs: Inputs, got: Answer, want: Answer) -> Correctness:  # noqa: ARG002 - subclasses use the inputs
        required = task.config.required_matched_ratio or self.required_matched_ratio
        names = list(task.definition.outputs)
        of_outputs = [compared(n, g, w, task.config, required) for n, g, w in zip(names, got, want, strict=False)]
        return max(of_outputs, key=lambda one: (-one.extra["matched_ratio"], one.max_absolute_error))

    def eval_performance(self, task: Task, solution: Solution, baseline: Baseline) -> list[core_timing.Timing]:
        """Time other inputs than were checked, behind a call with inputs that look like them."""
        timings = []
        for trial in task.trials:
            before = self.inputs(task, task.config.num_trials + trial)
            inputs = baseline.siblings.of(before)
            timing, answer = solution.timing(inputs, self.fewest_outputs, before=before)
            if answer is not None:
                self.judged(task, inputs, answer, self.expected(task, inputs))
            timings.append(timing)
        self.confirm(task, solution, timings, baseline.siblings)
        return timings

    def confirm(
        self, task: Task, solution: Solution, timings: Sequence[core_timing.Timing], siblings: Siblings
    ) -> None:
        """Raise an error unless the clock of this process says that these times can be."""
        outside_clock.confirm(self, task, solution, timings, siblings)


def randoms(task: Task) -> list[int]:
    """The positions of inputs that the workload does not provide."""
    declared = (task.workload.inputs.get(name) for name in task.definition.inputs)
    return [at for at, one in enumerate(declared) if one is None or one.type == "random"]


def _called_with_copies(task: Task, inputs: Inputs) -> Target:
    """The reference, which may change what it is called with."""
    return Target(_reference(task), tuple(inputs)).at_new_addresses()


def latency_ms(task: Task, drawn: Sequence[Inputs]) -> float:
    """The mean latency of the reference over these inputs; 0 if it is not wanted."""
    if not task.config.profile_baseline:
        return 0.0
    targets = (_called_with_copies(task, inputs) for inputs in drawn)
    how: dict[str, Any] = {"cuda_graph": False, "verify": lambda _target, _work: None}
    with task.device.threads(task.counts.cpu_threads):
        return 1e3 * fmean(core_timing.run(target, task.counts, task.device, **how).median for target in targets)


class LowBitEvaluator(DefaultEvaluator):
    """Allows a share of elements to be wrong, since narrow types are rounded in between."""

    required_matched_ratio = 0.95

    def can_evaluate(self, definition: Definition) -> bool:
        return definition.op_type == "lowbit" or "moe_fp8_block_scale" in definition.name


def compared(name: str, got: Tensor, want: Tensor, config: Resolved, required: float) -> Correctness:
    """Compare an output; infinities and NaN are right where the reference has the same."""
    x, y = got.double(), want.double()
    same = (x == y) | (x.isnan() & y.isnan())
    not_finite = ~x.isfinite() & ~same
    if bool(not_finite.any()):
        raise wrong(f"{name}: {int(not_finite.sum())} elements are NaN or infinite", x[not_finite][0].abs().item())
    error = torch.where(same, 0.0, torch.where(y.isfinite(), (x - y).abs(), math.inf))
    relative = torch.where(same, 0.0, torch.where(y.isfinite(), error / (y.abs() + 1e-8), math.inf))
    matched = 1.0 - ((error > config.atol) & (relative > config.rtol)).double().mean().item() if x.numel() else 1.0
    correctness = Correctness(
        max_relative_error=relative.max().item() if x.numel() else 0.0,
        max_absolute_error=error.max().item() if x.numel() else 0.0,
        extra={"matched_ratio": matched},
    )
    if matched < required:
        share = f"{100 * matched:.4g} % of elements match, {100 * required:g} % must"
        raise SolutionError(EvaluationStatus.INCORRECT_NUMERICAL, f"{name}: {share}", correctness)
    return correctness


def wrong(message: str, error: float = math.inf) -> SolutionError:
    correctness = Correctness(max_relative_error=error, max_absolute_error=error)
    return SolutionError(EvaluationStatus.INCORRECT_NUMERICAL, message, correctness)


# Evaluators for DeepSeek's sparse attention: attention over chosen tokens, and the indexer that chooses them.

INDEXER_INPUTS = {"q_index_fp8", "k_index_cache_fp8", "weights", "seq_lens", "block_table"}
SCALE_BYTES = 4
FP8_MAX = 448.0


class SparseAttentionEvaluator(DefaultEvaluator):
    """A solution may omit the second output, the log-sum-exp."""

    fewest_outputs = 1

    def can_evaluate(self, definition: Definition) -> bool:
        return "sparse_indices" in definition.inputs and len(definition.outputs) == 2


class TopkIndexerEvaluator(DefaultEvaluator):
    """Compares scores instead of indices, since equal scores may be chosen in any order."""

    def can_evaluate(self, definition: Definition) -> bool:
        return set(definition.inputs) >= INDEXER_INPUTS

    def inputs(self, task: Task, trial: int) -> list[Any]:
        """Draw keys and pack them with their scales, since random bytes are not a valid cache."""
        values = super().inputs(task, trial)
        at = list(task.definition.inputs).index("k_index_cache_fp8")
        cache = task.workload.inputs.get("k_index_cache_fp8")
        if cache is None or cache.type == "random":
            values[at] = packed(values[at].shape, torch.Generator(task.device.torch).manual_seed(task.seed + trial))
        return values

    def exchangeable(self, task: Task) -> list[int]:
        """The inputs whose numbers may be exchanged: not the cache, whose bytes are keys and scales."""
        return [at for at in randoms(task) if list(task.definition.inputs)[at] != "k_index_cache_fp8"]

    def judged(self, task: Task, inputs: Inputs, got: Answer, want: Answer) -> Correctness:
        named = dict(zip(task.definition.inputs, inputs, strict=True))
        _valid(got[0].long(), named)
        chosen, expected = (scores(one[0].long(), named).sort(-1, descending=True).values for one in (got, want))
        required = task.config.required_matched_ratio or self.required_matched_ratio
        return compared(next(iter(task.definition.outputs)), chosen, expected, task.config, required)


def packed(shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Pages of FP8 keys, each page followed by the fp32 scales of its keys."""
    pages, page, heads, width = shape
    keys = torch.randn(pages, page * heads, width - SCALE_BYTES, device=generator.device, generator=generator)
    scale = keys.abs().amax(-1, keepdim=True).clamp_min(1e-4) / FP8_MAX
    narrow = (keys / scale).to(torch.float8_e4m3fn).view(torch.uint8).reshape(pages, -1)
    return torch.cat([narrow, scale.view(torch.uint8).reshape(pages, -1)], 1).view(torch.int8).reshape(shape)


def unpacked(cache: Tensor) -> Tensor:
    pages, page, heads, width = cache.shape
    raw = cache.contiguous().view(torch.uint8).reshape(pages, -1)
    end = page * heads * (width - SCALE_BYTES)
    keys = raw[:, :end].contiguous().view(torch.float8_e4m3fn).float().reshape(pages, page * heads, -1)
    return keys * raw[:, end:].contiguous().view(torch.float32).reshape(pages, page * heads, 1)


def scores(tokens: Tensor, named: dict[str, Any]) -> Tensor:
    """The indexer's score of each chosen token; minus infinity for none."""
    keys = unpacked(named["k_index_cache_fp8"]).flatten(0, 1)[tokens.clamp_min(0)]
    per_head = torch.einsum("bhd,bnd->bhn", named["q_index_fp8"].float(), keys).relu()
    summed = torch.einsum("bhn,bh->bn", per_head, named["weights"].float())
    return summed.masked_fill(tokens < 0, -math.inf)


def _valid(tokens: Tensor, named: dict[str, Any]) -> None:
    page = named["k_index_cache_fp8"].shape[1]
    table, lengths = named["block_table"].long(), named["seq_lens"].long().reshape(-1, 1)
    is_there = tokens.clamp_min(0).div(page, rounding_mode="floor").unsqueeze(-1) == table.unsqueeze(1)
    position = is_there.long().argmax(-1) * page + tokens.clamp_min(0) % page
    not_its_own = (tokens >= 0) & ~(is_there.any(-1) & (position < lengths))
    ordered = tokens.sort(-1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    for what, rows in (("tokens that are not its own", not_its_own.any(-1)), ("a token twice", twice.any(-1))):
        if bool(rows.any()):
            raise wrong(f"request {int(rows.nonzero()[0])} has {what}")


# Make the inputs of a workload in the order of its definition: random, given, or loaded from safetensors.

INTEGERS = {torch.int8: 128, torch.int16: 1024, torch.int32: 1024, torch.int64: 1024}
NARROW = (torch.float8_e4m3fn, torch.float8_e5m2)
WIDE = (torch.float32, torch.float16, torch.bfloat16)


class DataError(FlashinferPerfError):
    """An input or an answer of the data set does not fit its definition; the message names it."""


def drawn(definition: Definition, workload: Workload, root: Path, seed: int, device: torch.device) -> list[Any]:
    generator = torch.Generator(device).manual_seed(seed)
    shapes = definition.get_input_shapes(workload.axes)
    values: list[Any] = []
    for name, shape, dtype in zip(definition.inputs, shapes, definition.torch_input_dtypes, strict=True):
        declared = workload.inputs.get(name)
        if declared is not None and declared.type == "scalar":
            values.append(declared.value)
        elif declared is not None and declared.type == "safetensors":
            values.append(_loaded(name, declared, root, shape, dtype).to(device))
        else:
            value = _random(name, shape or (), dtype, generator)
            if definition.op_type == "sampling" and name == "probs":
                value = value.softmax(-1)
            values.append(value.item() if shape is None else value)
    return values


def _random(name: str, shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    where: dict[str, Any] = {"device": generator.device, "generator": generator}
    if dtype in WIDE:
        return torch.randn(shape, dtype=dtype, **where)
    if dtype in NARROW:
        return torch.randn(shape, **where).clamp_(-2.0, 2.0).to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, dtype=dtype, **where)
    if dtype in INTEGERS:
        return torch.randint(-INTEGERS[dtype], INTEGERS[dtype], shape, dtype=dtype, **where)
    raise DataError(f"{name}: there are no random values of {dtype}, provide it as safetensors")


def _loaded(name: str, declared: SafetensorsInput, root: Path, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    try:
        with safe_open(root / declared.path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(declared.tensor_key)
    except Exception as error:  # the errors of safetensors depend on its version
        raise DataError(f"{name}: {declared.path}, {declared.tensor_key}: {error}") from error
    if (tuple(tensor.shape), tensor.dtype) != (tuple(shape or ()), dtype):
        has = f"{tuple(tensor.shape)} of {tensor.dtype}"
        raise DataError(f"{name}: {declared.path}, {declared.tensor_key}: {has}, not {tuple(shape or ())} of {dtype}")
    return tensor
