"""Evaluators for DeepSeek's sparse attention: attention over chosen tokens, and the indexer that chooses them."""

from __future__ import annotations

import math
from typing import Any

import torch
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus
from torch import Tensor

from pytest_flashinfer_perf.trace_sets.evaluators import DefaultEvaluator, compared
from pytest_flashinfer_perf.trace_sets.solution import Answer, Given, SolutionError, Task

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
        given = super().inputs(task, trial)
        at = list(task.definition.inputs).index("k_index_cache_fp8")
        cache = task.workload.inputs.get("k_index_cache_fp8")
        if cache is None or cache.type == "random":
            given[at] = packed(given[at].shape, torch.Generator(task.device.torch).manual_seed(task.seed + trial))
        return given

    def judged(self, task: Task, given: Given, got: Answer, want: Answer) -> Correctness:
        named = dict(zip(task.definition.inputs, given, strict=True))
        name, chosen, expected = next(iter(task.definition.outputs)), got[0], want[0]
        if chosen.shape == expected.shape and chosen.dtype == expected.dtype:
            _valid(chosen.long(), named)
            chosen, expected = _ranked(chosen, named), _ranked(expected, named)
        required = task.config.required_matched_ratio or self.required_matched_ratio
        return compared(name, chosen, expected, task.config, required)


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


def _ranked(tokens: Tensor, named: dict[str, Any]) -> Tensor:
    return scores(tokens.long(), named).sort(-1, descending=True).values


def _valid(tokens: Tensor, named: dict[str, Any]) -> None:
    page = named["k_index_cache_fp8"].shape[1]
    table, lengths = named["block_table"].long(), named["seq_lens"].long().reshape(-1, 1)
    is_there = tokens.clamp_min(0).div(page, rounding_mode="floor").unsqueeze(-1) == table.unsqueeze(1)
    position = is_there.long().argmax(-1) * page + tokens.clamp_min(0) % page
    strange = (tokens >= 0) & ~(is_there.any(-1) & (position < lengths))
    ordered = tokens.sort(-1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    for what, rows in (("tokens that are not its own", strange.any(-1)), ("a token twice", twice.any(-1))):
        if bool(rows.any()):
            seen = Correctness(max_relative_error=math.inf, max_absolute_error=math.inf)
            message = f"request {int(rows.nonzero()[0])} has {what}"
            raise SolutionError(EvaluationStatus.INCORRECT_NUMERICAL, message, seen)
