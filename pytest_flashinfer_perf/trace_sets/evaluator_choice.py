"""Choose the evaluator for the solutions of a definition."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from flashinfer_bench.data import Definition

from pytest_flashinfer_perf.trace_sets.dsa import SparseAttentionEvaluator, TopkIndexerEvaluator
from pytest_flashinfer_perf.trace_sets.evaluators import DefaultEvaluator, Evaluator, LowBitEvaluator
from pytest_flashinfer_perf.trace_sets.sampling import SamplingEvaluator


def evaluator_for(definition: Definition, own: Sequence[str]) -> Evaluator:
    """The first evaluator that accepts the definition: the user's own, then ours."""
    ours = (SamplingEvaluator, LowBitEvaluator, SparseAttentionEvaluator, TopkIndexerEvaluator, DefaultEvaluator)
    kinds: list[type[Evaluator]] = [*map(_imported, own), *ours]
    return next(one for one in (kind() for kind in kinds) if one.can_evaluate(definition))


def _imported(name: str) -> type[Evaluator]:
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise TypeError(f"evaluators: {name!r} must be module:Class: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Evaluator)):
        raise TypeError(f"evaluators: {name!r} is not an Evaluator")
    return kind
