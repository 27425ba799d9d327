"""Choose the evaluator for the solutions of a definition."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from flashinfer_bench.data import Definition

from pytest_flashinfer_perf.trace_sets.dsa import SparseAttentionEvaluator, TopkIndexerEvaluator
from pytest_flashinfer_perf.trace_sets.evaluators import DefaultEvaluator, Evaluator, LowBitEvaluator
from pytest_flashinfer_perf.trace_sets.sampling import SamplingEvaluator
from pytest_flashinfer_perf.trace_sets.theirs import FlashInferBenchEvaluator, is_theirs


def evaluator_for(definition: Definition, own: Sequence[str]) -> Evaluator:
    """The first evaluator that accepts the definition: the user's own, then ours."""
    ours = (SamplingEvaluator, LowBitEvaluator, SparseAttentionEvaluator, TopkIndexerEvaluator, DefaultEvaluator)
    known = (*map(_imported, own), *(kind() for kind in ours))
    return next(one for one in known if one.can_evaluate(definition))


def _imported(name: str) -> Evaluator:
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise TypeError(f"evaluators: {name!r} must be module:Class: {error}") from error
    if isinstance(kind, type) and issubclass(kind, Evaluator):
        return kind()
    if is_theirs(kind):
        return FlashInferBenchEvaluator(kind)
    raise TypeError(f"evaluators: {name!r} is not an Evaluator, nor one of FlashInfer-Bench")
