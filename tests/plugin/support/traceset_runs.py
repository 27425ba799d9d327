"""A data set of one GEMM with solutions of every kind, and how to run it quickly and without a clock."""

import json
import multiprocessing.forkserver  # noqa: F401 - what pytester finds imported, it leaves: one server for all tests

import datasets
from datasets import DataSet, solution, workload

from pytest_flashinfer_perf.trace_sets import evaluators, samplers


class AnyTime:
    """Believes each time, as no clock of a busy machine would."""

    def confirm(self, task, solution, timings, siblings):
        pass


class Default(AnyTime, evaluators.DefaultEvaluator):
    pass


class Sampling(AnyTime, samplers.SamplingEvaluator):
    pass


class LowBit(AnyTime, evaluators.LowBitEvaluator):
    pass


class SparseAttention(AnyTime, evaluators.SparseAttentionEvaluator):
    pass


class TopkIndexer(AnyTime, evaluators.TopkIndexerEvaluator):
    pass


KINDS = (Sampling, LowBit, SparseAttention, TopkIndexer, Default)
BY_ANY_TIME = ",".join(f"{__name__}:{kind.__name__}" for kind in KINDS)
FAST = (
    "--perf-device=cpu",
    "--perf-trace-option=iterations=3",
    "--perf-trace-option=warmup_runs=1",
    f"--perf-trace-option=evaluators=[{BY_ANY_TIME}]",
)
TRUSTED = (*FAST, "--perf-trust-solutions", "--perf-trace-option=num_trials=2")
GEMM = datasets.GEMM["name"]
GEMM_SOLUTIONS = {
    "right": solution(GEMM, "right", datasets.RIGHT[GEMM]),
    "returning": solution(GEMM, "returning", "def run(A, B):\n    return A @ B.T\n", returns=True),
    "slow": solution(GEMM, "slow", "import time\n\ndef run(A, B, C):\n    time.sleep(0.02)\n    C.copy_(A @ B.T)\n"),
    "wrong": solution(GEMM, "wrong", "def run(A, B, C):\n    C.copy_(A @ B.T * 1.1)\n"),
    "nan": solution(GEMM, "nan", "def run(A, B, C):\n    C[:-1] = (A @ B.T)[:-1]\n"),
    "shape": solution(GEMM, "shape", "def run(A, B):\n    return (A @ B.T)[:-1]\n", returns=True),
    "dtype": solution(GEMM, "dtype", "def run(A, B):\n    return (A @ B.T).half()\n", returns=True),
    "raising": solution(GEMM, "raising", "def run(A, B, C):\n    print('so far')\n    raise OSError('no such luck')\n"),
    "syntax": solution(GEMM, "syntax", "def run(A, B, C:\n"),
    "signature": solution(GEMM, "signature", "def run(A):\n    pass\n"),
    "crashing": solution(GEMM, "crashing", "import os\n\ndef run(A, B, C):\n    os.abort()\n"),
    "hanging": solution(GEMM, "hanging", "import time\n\ndef run(A, B, C):\n    time.sleep(1000)\n"),
    "leaving": solution(GEMM, "leaving", "import sys\n\ndef run(A, B, C):\n    sys.exit(0)\n"),
    "stale": solution(
        GEMM,
        "stale",
        "calls = []\n\ndef run(A, B, C):\n    calls.append(1)\n    len(calls) < 5 and C.copy_(A @ B.T)\n",
    ),
}


def gemm(path):
    random = {"A": {"type": "random"}, "B": {"type": "random"}}
    return DataSet(path).define(datasets.GEMM, workload(GEMM, "0123456789", {"M": 4}, **random))


def run(pytester, *arguments):
    return pytester.runpytest_inprocess(*arguments, "-p", "no:cacheprovider")


def rows(pytester):
    return json.loads((pytester.path / "run.json").read_text())["benchmarks"]


FORGED = """from dataclasses import replace
from pytest_flashinfer_perf.trace_sets import solver

timed = solver.run

def forged(*given, **rest):
    seen = timed(*given, **rest)
    return replace(seen, samples=({}, ) * len(seen.samples))

solver.run = forged
"""
