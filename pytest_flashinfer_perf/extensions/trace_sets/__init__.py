"""Evaluate FlashInfer-Bench data sets: definitions, workloads and solutions, which are other people's code."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashinfer_bench.data import TraceSet

    from pytest_flashinfer_perf.extensions.trace_sets.benchmark import Benchmark
    from pytest_flashinfer_perf.extensions.trace_sets.config import BenchmarkConfig, EvalConfig
    from pytest_flashinfer_perf.extensions.trace_sets.evaluators import DefaultEvaluator, Evaluator

__all__ = ["Benchmark", "BenchmarkConfig", "DefaultEvaluator", "EvalConfig", "Evaluator", "TraceSet"]

_HOMES = {
    "Benchmark": f"{__name__}.benchmark",
    "BenchmarkConfig": f"{__name__}.config",
    "DefaultEvaluator": f"{__name__}.evaluators",
    "EvalConfig": f"{__name__}.config",
    "Evaluator": f"{__name__}.evaluators",
    "TraceSet": "flashinfer_bench.data",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    verify_installed()
    return getattr(importlib.import_module(_HOMES[name]), name)


def verify_installed() -> None:
    if find_spec("flashinfer_bench") is None:
        raise ImportError(
            "trace sets need the flashinfer-bench package: pip install flashinfer-bench pydantic pyyaml safetensors"
        )
