"""Solutions of a data set: their statuses, times that cannot be, evaluators, and the traces that are written."""

import multiprocessing.forkserver  # noqa: F401 - what pytester finds imported, it leaves: one server for all tests

import datasets
import pytest
import torch
from datasets import DataSet, solution, workload
from flashinfer_bench.data import Definition, Trace
from safetensors.torch import save_file
from traceset_runs import FAST, FORGED, GEMM, GEMM_SOLUTIONS, TRUSTED, rows, run

from pytest_flashinfer_perf.spec.cost import Peaks
from pytest_flashinfer_perf.trace_sets import TraceSet, plausible
from pytest_flashinfer_perf.trace_sets.child import Job
from pytest_flashinfer_perf.trace_sets.config import Resolved

pytestmark = pytest.mark.usefixtures("build_cache")
STATUSES = {
    "right": "PASSED",
    "returning": "PASSED",
    "slow": "PASSED",
    "wrong": "INCORRECT_NUMERICAL",
    "nan": "INCORRECT_NUMERICAL",
    "shape": "INCORRECT_SHAPE",
    "dtype": "INCORRECT_DTYPE",
    "raising": "RUNTIME_ERROR",
    "syntax": "COMPILE_ERROR",
    "signature": "COMPILE_ERROR",
    "crashing": "RUNTIME_ERROR",
    "hanging": "TIMEOUT",
    "leaving": "RUNTIME_ERROR",
    "stale": "INCORRECT_NUMERICAL",
}


@pytest.mark.parametrize("isolated", [False, True])
def test_every_status_under_both_runners(pytester, gemm, isolated):
    gemm.solve(*GEMM_SOLUTIONS.values())
    options = (f"--perf-trace-option=use_isolated_runner={isolated}", "--perf-trace-option=timeout_seconds=5")
    result = run(pytester, "set", *TRUSTED, *options, "--benchmark-json=run.json")
    result.assert_outcomes(passed=3, failed=len(STATUSES) - 3)
    assert gemm.statuses() == STATUSES
    assert {row["extra_info"]["backend"] for row in rows(pytester)} == {"right", "returning", "slow"}
    result.stdout.fnmatch_lines_random(["TIMEOUT: no answer within 5 s*", "*its process died: SIGABRT*", "| so far"])


CLOCK = "import itertools, time\nreadings = itertools.count()\n"


def latencies(made):
    return {t["solution"]: t["evaluation"]["performance"]["latency_ms"] for t in made.traces()}


def test_what_one_solution_changes_is_not_what_the_next_one_meets(pytester, gemm):
    changes = f"{CLOCK}time.perf_counter = lambda: 1e-9 * next(readings)\nimport torch\n"
    changes += "torch.set_default_dtype(torch.float64)\n"
    honest = "import torch\n\ndef run(A, B):\n    return torch.zeros(len(A), len(B)) + A @ B.T\n"
    spoiler = solution(GEMM, "a_spoiler", changes + datasets.RIGHT[GEMM])
    gemm.solve(spoiler, solution(GEMM, "honest", honest, returns=True))
    run(pytester, "set", *TRUSTED).assert_outcomes(passed=2)
    assert gemm.statuses() == {"a_spoiler": "PASSED", "honest": "PASSED"}
    assert min(latencies(gemm).values()) > 1e-4


def test_a_clock_that_is_replaced_while_it_is_read_is_no_time(pytester, gemm):
    fast = f"{CLOCK}import torch\n\ndef run(A, B, C):\n    time.perf_counter = lambda: 1e-9 * next(readings)\n"
    gemm.solve(solution(GEMM, "fast", f"{fast}    torch.matmul(A, B.T, out=C)\n"), GEMM_SOLUTIONS["right"])
    kept = ("--perf-trace-option=use_isolated_runner=false", "--benchmark-json=run.json")
    result = run(pytester, "set", *TRUSTED, *kept)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["replaces time.perf_counter, with which it is timed, so that its time is unknown"])
    assert gemm.statuses() == {"right": "PASSED"}
    assert [row["extra_info"]["backend"] for row in rows(pytester)] == ["right"]


IMPOSSIBLE = {
    "1e-9": "0.001000 us per call, but a call that does nothing takes at least *",
    "1e3": "timed calls of 6000. s in a job that took *",
    "float('nan')": "timed calls of nan s in a job that took *",
}


def test_a_time_that_cannot_be_is_no_trace(pytester, gemm):
    for nth, seconds in enumerate(IMPOSSIBLE):
        gemm.solve(solution(GEMM, f"forged_{nth}", FORGED.format(seconds) + datasets.RIGHT[GEMM]))
    result = run(pytester, "set", *TRUSTED)
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines([f"impossible time: {sentence}" for sentence in IMPOSSIBLE.values()])
    assert gemm.traces() == []


def test_no_output_is_written_faster_than_the_roof():
    definition = Definition.model_validate(datasets.GEMM)
    asked = Trace.model_validate(workload(GEMM, "w", {"M": 1 << 20})).workload
    job = Job(definition, asked, None, None, Resolved())
    assert plausible.writing_s(job, 1 << 20, Peaks(31e6, {}, "measured")) == pytest.approx(2**20 * 31 / 31e6)
    assert plausible.writing_s(job, 1 << 30, Peaks(31e6, {}, "measured")) == 0.0


def test_traces_are_read_back_by_flashinfer_bench_and_never_overwritten(pytester, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["nan"])
    kept = gemm.root / "traces/tests/gemm" / f"{GEMM}.jsonl"
    run(pytester, "set", *TRUSTED)
    first = kept.read_text()
    kept.write_text(first.rstrip("\n"))
    run(pytester, "set", *TRUSTED)
    assert kept.read_text().startswith(first)
    assert len(kept.read_text().splitlines()) == 4
    theirs = TraceSet.from_path(str(gemm.root))
    assert [trace.evaluation.status.value for trace in theirs.traces[GEMM]] == ["INCORRECT_NUMERICAL", "PASSED"] * 2
    schema = Trace.model_json_schema()
    for trace in gemm.traces():
        assert set(trace) == set(schema["properties"])
        assert trace["evaluation"]["environment"]["libs"]["torch"] == torch.__version__


def test_a_row_has_the_reference_beside_the_solution(pytester, gemm):
    gemm.solve(GEMM_SOLUTIONS["slow"])
    result = run(pytester, "set", *TRUSTED, "--benchmark-json=run.json", "--perf-csv=run.csv")
    (row,) = rows(pytester)
    said = row["extra_info"]
    assert row["stats"]["rounds"] == 6
    assert said["latency_s"] > 0.02 > said["reference_latency_s"] > 0
    assert said["speedup"] == pytest.approx(said["reference_latency_s"] / said["latency_s"])
    assert (said["refcheck"], said["matched_ratio"], said["instrument"]) == ("passed", 1.0, "wall")
    assert row["params"] == {"routine": GEMM, "backend": "slow", "N": 8, "K": 16, "M": 4}
    trace = gemm.traces()[0]["evaluation"]["performance"]
    assert trace["latency_ms"] == pytest.approx(1e3 * said["latency_s"])
    assert len((pytester.path / "run.csv").read_text().splitlines()) == 2
    again = run(pytester, *said["repro"].split()[1:3], *FAST, "-k", said["case"])
    again.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"*{GEMM} on cpu*", "M4", "*slow*"])


def test_gqa_decode_from_safetensors_with_an_empty_request(pytester):
    made = DataSet(pytester.path / "set", flat=True)
    blob = made.root / "blob/workloads/x.safetensors"
    blob.parent.mkdir(parents=True)
    save_file({"p": torch.tensor([0, 3, 3, 5]).int(), "i": torch.tensor([4, 0, 2, 1, 3]).int()}, blob)
    tensors = {
        "kv_indptr": {"type": "safetensors", "path": "blob/workloads/x.safetensors", "tensor_key": "p"},
        "kv_indices": {"type": "safetensors", "path": "blob/workloads/x.safetensors", "tensor_key": "i"},
        "sm_scale": {"type": "scalar", "value": 0.35},
    }
    axes = {"batch": 3, "pages": 5, "indptr": 4, "tokens": 5}
    name = datasets.DECODE["name"]
    made.define(datasets.DECODE, workload(name, "w", axes, **tensors))
    right = datasets.DECODE["reference"]
    made.solve(
        solution(name, "right", right, returns=True),
        solution(name, "unscaled", right.replace(" * sm_scale", ""), returns=True),
        solution(name, "lse_zero", right.replace("-math.inf", "0.0"), returns=True),
    )
    run(pytester, "set", *TRUSTED).assert_outcomes(passed=1, failed=2)
    assert made.statuses() == {
        "right": "PASSED",
        "unscaled": "INCORRECT_NUMERICAL",
        "lse_zero": "INCORRECT_NUMERICAL",
    }


EVALUATED = {
    "default": (
        datasets.RMSNORM,
        {"batch": 3},
        {"eps": {"type": "scalar", "value": 1e-6}},
        datasets.RIGHT["rmsnorm_h32"],
        datasets.RIGHT["rmsnorm_h32"].replace("weight.float()", "None"),
    ),
    "sampling": (
        datasets.SAMPLING,
        {"batch": 2},
        {"top_k": {"type": "safetensors", "path": "blob/k.safetensors", "tensor_key": "k"}},
        datasets.SAMPLING["reference"],
        datasets.SAMPLING["reference"].replace("kept.multinomial", "(kept > 0).float().multinomial"),
    ),
    "lowbit": (
        datasets.LOWBIT,
        {"M": 100},
        {},
        "def run(A, B):\n    C = A @ B.T\n    C[:4] = 9\n    return C\n",
        "def run(A, B):\n    C = A @ B.T\n    C[:8] = 9\n    return C\n",
    ),
    "dsa-indexer": (
        datasets.INDEXER,
        {"batch": 2, "pages": 6, "slots": 3},
        {
            "seq_lens": {"type": "safetensors", "path": "blob/k.safetensors", "tensor_key": "lens"},
            "block_table": {"type": "safetensors", "path": "blob/k.safetensors", "tensor_key": "table"},
        },
        datasets.INDEXER["reference"].replace("return chosen", "return chosen.sort(-1, descending=True).values"),
        datasets.INDEXER["reference"].replace(".topk(min(4, length))", ".topk(min(4, length), largest=False)"),
    ),
    "dsa-attention": (
        datasets.SPARSE,
        {"tokens": 3, "pages": 7},
        {},
        datasets.SPARSE["reference"].replace(", logits.logsumexp(-1)", ""),
        datasets.SPARSE["reference"].replace("logits.softmax(-1)", "(0.5 * logits).softmax(-1)"),
    ),
}


def test_each_evaluator_passes_what_is_right_and_sees_what_is_wrong(pytester):
    made = DataSet(pytester.path / "set")
    (made.root / "blob").mkdir()
    table = torch.tensor([[0, 2, 4], [5, 1, 3]]).int()
    save_file(
        {"k": torch.tensor([3, 16]).int(), "lens": torch.tensor([5, 3]).int(), "table": table},
        made.root / "blob/k.safetensors",
    )
    for kind, (definition, axes, inputs, *sources) in EVALUATED.items():
        made.define(definition, workload(definition["name"], "w", axes, **inputs))
        for verdict, source in zip(("right", "wrong"), sources, strict=True):
            made.solve(solution(definition["name"], f"{kind}-{verdict}", source, returns=kind != "default"))
    run(pytester, "set", *TRUSTED).assert_outcomes(passed=len(EVALUATED), failed=len(EVALUATED))
    statuses = {"right": "PASSED", "wrong": "INCORRECT_NUMERICAL"}
    assert made.statuses() == {
        f"{kind}-{verdict}": status for kind in EVALUATED for verdict, status in statuses.items()
    }


def test_a_reference_that_fails_is_no_solutions_fault(pytester):
    broken = {**datasets.GEMM, "reference": "def run(A, B):\n    return nothing\n"}
    made = DataSet(pytester.path / "set").define(broken, workload(GEMM, "w", {"M": 2}))
    made.solve(GEMM_SOLUTIONS["right"])
    result = run(pytester, "set", *TRUSTED)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*its reference or its inputs fail: NameError*"])
    assert made.traces() == []


def test_own_evaluators_come_first(pytester, gemm):
    gemm.solve(GEMM_SOLUTIONS["wrong"])
    pytester.makepyfile(
        lenient="""
        from flashinfer_bench.data import Correctness
        from pytest_flashinfer_perf.trace_sets import DefaultEvaluator

        class Lenient(DefaultEvaluator):
            def can_evaluate(self, definition):
                return definition.op_type == "gemm"

            def judged(self, task, given, got, want):
                return Correctness(extra={"matched_ratio": task.config.extra["share"]})
        """
    )
    pytester.syspathinsert()
    own = ("--perf-trace-option=evaluators=[lenient:Lenient]", "--perf-trace-option=extra={share: 0.5}")
    run(pytester, "set", *TRUSTED, *own).assert_outcomes(passed=1)
    assert gemm.traces()[0]["evaluation"]["correctness"]["extra"]["matched_ratio"] == 0.5
