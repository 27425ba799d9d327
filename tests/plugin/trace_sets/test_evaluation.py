"""Solutions of a data set: their statuses, times that cannot be, evaluators, and the traces that are written."""

import multiprocessing.forkserver  # noqa: F401 - what pytester finds imported, it leaves: one server for all tests

import datasets
import pytest
import torch
from datasets import DataSet, solution, workload
from flashinfer_bench.data import Trace
from safetensors.torch import save_file
from traceset_runs import FAST, FORGED, GEMM, GEMM_SOLUTIONS, TRUSTED, rows, run

from pytest_flashinfer_perf.trace_sets import TraceSet

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


def test_what_one_solution_changes_is_not_what_the_next_one_meets(pytester, gemm):
    honest = "import torch\n\ndef run(A, B):\n    return torch.zeros(len(A), len(B)) + A @ B.T\n"
    spoiler = "import torch\ntorch.set_default_dtype(torch.float64)\n" + datasets.RIGHT[GEMM]
    gemm.solve(solution(GEMM, "a_spoiler", spoiler), solution(GEMM, "honest", honest, returns=True))
    run(pytester, "set", *TRUSTED).assert_outcomes(passed=2)
    assert gemm.statuses() == {"a_spoiler": "PASSED", "honest": "PASSED"}


CHEATS = {
    "zeros": "torch.Tensor.__eq__ = lambda a, b: torch.ones_like(a, dtype=torch.bool)\n\n"
    "def run(A, B, C):\n    C.zero_()\n",
    "memo": "kept = {}\n\ndef run(A, B, C):\n    key = float(A[0, 0])\n"
    "    if key not in kept:\n        kept[key] = A @ B.T\n    C.copy_(kept[key])\n",
}


def test_a_solution_does_not_judge_itself_and_a_memo_is_found(pytester, gemm):
    gemm.solve(*(solution(GEMM, name, f"import torch\n{code}") for name, code in CHEATS.items()))
    run(pytester, "set", *TRUSTED, "--benchmark-json=run.json").assert_outcomes(failed=2)
    assert gemm.statuses() == {"zeros": "INCORRECT_NUMERICAL", "memo": "INCORRECT_NUMERICAL"}
    assert rows(pytester) == []


def test_a_time_that_cannot_be_is_no_trace_and_its_process_is_not_used_again(pytester, gemm):
    gemm.solve(solution(GEMM, "forged", FORGED.format("1e3") + datasets.RIGHT[GEMM]), GEMM_SOLUTIONS["right"])
    kept = ("--perf-trace-option=use_isolated_runner=false", "--benchmark-json=run.json")
    result = run(pytester, "set", *TRUSTED, *kept)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["impossible time: timed calls of 3000. s when all of it took *"])
    assert gemm.statuses() == {"right": "PASSED"}
    assert [row["extra_info"]["backend"] for row in rows(pytester)] == ["right"]


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
    result.stdout.fnmatch_lines(["*its reference, its inputs or its evaluator fail: NameError*"])
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


THEIRS = """
import torch
from flashinfer_bench.bench.evaluators.evaluator import Evaluator
from flashinfer_bench.bench.runner.runner import BaselineHandle, DeviceBaseline
from flashinfer_bench.bench.utils import compute_error_stats, gen_inputs, make_eval
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.data import Correctness, EvaluationStatus

class Doubled(Evaluator):
    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type == "gemm"

    @classmethod
    def build_baseline(cls, definition, workload, cfg, device, trace_set_root=None):
        inputs = [gen_inputs(definition, workload, device) for _ in range(cfg.num_trials)]
        outputs = [[2 * a @ b.T] for a, b in inputs]
        return DeviceBaseline(BaselineHandle("x"), definition, device, inputs, outputs, 0.0)

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref_outputs, cfg, log_path, device):
        seen = Correctness()
        for given, (want,) in zip(inputs, ref_outputs):
            if sol_runnable.metadata.destination_passing_style:
                got = allocate_outputs(definition, given, device)
                sol_runnable(*given, *got)
            else:
                got = normalize_result(definition, sol_runnable(*given), device)
            largest, _, exceeds, _ = compute_error_stats(got[0], want, cfg)
            seen = Correctness(max_absolute_error=largest)
            if exceeds:
                status, said = EvaluationStatus.INCORRECT_NUMERICAL, f"not the double at atol {cfg.atol}"
                return seen, make_eval(status, device, log_path, correctness=seen, extra_msg=said)
        return seen, None

    @classmethod
    def eval_performance(cls, *given, **rest):
        raise AssertionError("times are measured here")
"""


def test_an_evaluator_that_was_written_for_flashinfer_bench_loads_as_it_is(pytester, gemm):
    double = "def run(A, B, C):\n    C.copy_(2 * A @ B.T)\n"
    later = f"calls = []\n{double}    calls.append(1)\n    len(calls) > 3 and C.zero_()\n"
    gemm.solve(
        GEMM_SOLUTIONS["right"],
        solution(GEMM, "double", double),
        solution(GEMM, "doubled", "def run(A, B):\n    return 2 * A @ B.T\n", returns=True),
        solution(GEMM, "later", later),
        GEMM_SOLUTIONS["leaving"],
    )
    pytester.makepyfile(theirs_of_mine=THEIRS)
    pytester.syspathinsert()
    own = "--perf-trace-option=evaluators=[theirs_of_mine:Doubled]"
    result = run(pytester, "set", *TRUSTED, own, "--perf-trace-option=atol=0.25")
    result.assert_outcomes(passed=2, failed=3)
    wrong = {"right": "INCORRECT_NUMERICAL", "later": "INCORRECT_NUMERICAL", "leaving": "RUNTIME_ERROR"}
    assert gemm.statuses() == {"double": "PASSED", "doubled": "PASSED", **wrong}
    result.stdout.fnmatch_lines_random(["*not the double at atol 0.25", "RUNTIME_ERROR: SystemExit: 0"])
