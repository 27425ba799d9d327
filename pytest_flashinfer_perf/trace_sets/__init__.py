"""Evaluate FlashInfer-Bench data sets: definitions, workloads and solutions, which are other people's code."""

from importlib.util import find_spec

if find_spec("flashinfer_bench") is None:
    raise ImportError(
        "trace sets need the flashinfer-bench package: pip install flashinfer-bench pydantic pyyaml safetensors"
    )

from flashinfer_bench.data import TraceSet

from pytest_flashinfer_perf.trace_sets.benchmark import Benchmark
from pytest_flashinfer_perf.trace_sets.config import BenchmarkConfig, EvalConfig
from pytest_flashinfer_perf.trace_sets.evaluators import DefaultEvaluator, Evaluator

__all__ = ["Benchmark", "BenchmarkConfig", "DefaultEvaluator", "EvalConfig", "Evaluator", "TraceSet"]
