"""A data set of one GEMM with solutions of every kind, and how to judge them quickly and without a clock."""

import datasets
from datasets import DataSet, solution, workload
from flashinfer_bench.data import Correctness, Definition, Solution, Workload

from pytest_flashinfer_perf.extensions.trace_sets import evaluators, foreign_evaluators, samplers
from pytest_flashinfer_perf.extensions.trace_sets.benchmark import Runner
from pytest_flashinfer_perf.extensions.trace_sets.config import Resolved
from pytest_flashinfer_perf.extensions.trace_sets.judge import Job


class AnyTime:
    """Believes each time, as no clock of a busy machine would."""

    def confirm(self, *_):
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


class Lenient(Default):
    """Of a project's own: as many elements must be right as `extra` says."""

    def judged(self, task, *_):
        return Correctness(extra={"matched_ratio": task.config.extra["share"]})


class ByTheirs(AnyTime, foreign_evaluators.FlashInferBenchEvaluator):
    def __init__(self):
        from their_evaluator import Doubled  # which imports all of FlashInfer-Bench's evaluators

        super().__init__(Doubled)


KINDS = (Sampling, LowBit, SparseAttention, TopkIndexer, Default)
BY_ANY_TIME = tuple(f"{__name__}:{kind.__name__}" for kind in KINDS)
CONFIG = Resolved(iterations=3, warmup_runs=1, num_trials=2, timeout_seconds=300, profile_baseline=False)


class Judges:
    """Judges a solution in a process of its own, or in one with others."""

    def __init__(self, root, config):
        self.root, self._config = root, config
        self._runners = {isolated: Runner(isolated=isolated, timeout=300) for isolated in (True, False)}

    def job(self, definition, source, *, axes=None, inputs=None, name="mine", evaluators=BY_ANY_TIME, **config):
        """`source` is a file of Python, or a whole solution."""
        if isinstance(source, str):
            inside = source.partition("def run(")[2].partition(")")[0].split(", ")
            source = solution(definition["name"], name, source, returns=len(inside) == len(definition["inputs"]))
        given = {name: {"type": "random"} for name, one in definition["inputs"].items() if one["shape"]}
        asked = Workload(axes=axes or {"M": 4}, inputs={**given, **(inputs or {})}, uuid="w")
        made = Definition.model_validate(definition), asked, Solution.model_validate(source)
        return Job(*made, self.root, self._config.model_copy(update=config), evaluators)

    def __call__(self, *words, isolated=True, **said):
        return self._runners[isolated].evaluate(self.job(*words, **said))

    def close(self):
        for runner in self._runners.values():
            runner.close()


SET = "--perf-trace-set=set"
FAST = (
    "--perf-device=cpu",
    "--perf-trace-option=iterations=3",
    "--perf-trace-option=warmup_runs=1",
    f"--perf-trace-option=evaluators=[{','.join(BY_ANY_TIME)}]",
)
TRUSTED = (*FAST, "--perf-trust-solutions", "--perf-trace-option=num_trials=2")
GEMM = datasets.GEMM["name"]
GEMM_SOLUTIONS = {
    "right": solution(GEMM, "right", datasets.RIGHT[GEMM]),
    "returning": solution(GEMM, "returning", "def run(A, B):\n    return A @ B.T\n", returns=True),
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


FORGED = """from dataclasses import replace
from pytest_flashinfer_perf.extensions.trace_sets import solver

timed = solver.core_timing.run

def forged(*given, **rest):
    seen = timed(*given, **rest)
    return replace(seen, samples=({}, ) * len(seen.samples))

solver.core_timing.run = forged
"""
