"""Solutions of a data set: their statuses, times that cannot be, evaluators, and the traces that are written."""

import datasets
import pytest
import torch
from flashinfer_bench.data import Trace
from safetensors.torch import save_file
from traceset_runs import CONFIG, FORGED, GEMM, GEMM_SOLUTIONS, SET, TRUSTED

from pytest_flashinfer_perf.extensions.trace_sets import TraceSet, benchmark
from pytest_flashinfer_perf.extensions.trace_sets.foreign_evaluators import FlashInferBenchEvaluator
from pytest_flashinfer_perf.extensions.trace_sets.judge import evaluator_for

STATUSES = {
    "right": ("PASSED", ""),
    "returning": ("PASSED", ""),
    "wrong": ("INCORRECT_NUMERICAL", "C: 0 % of elements match, 100 % must"),
    "nan": ("INCORRECT_NUMERICAL", "C: 8 elements are NaN or infinite"),
    "shape": ("INCORRECT_SHAPE", "C: shape (3, 8) instead of (4, 8)"),
    "dtype": ("INCORRECT_DTYPE", "C: torch.float16 instead of torch.float32"),
    "raising": ("RUNTIME_ERROR", "OSError: no such luck"),
    "syntax": ("COMPILE_ERROR", ""),
    "signature": ("COMPILE_ERROR", ""),
    "crashing": ("RUNTIME_ERROR", "its process died: SIGABRT"),
    "hanging": ("TIMEOUT", "no answer within 0.5 s (timeout_seconds)"),
    "leaving": ("RUNTIME_ERROR", "SystemExit: 0"),
    "stale": ("INCORRECT_NUMERICAL", "C: 32 elements are NaN or infinite"),
}


def status(result):
    return result.status and result.status.value


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("name", STATUSES)
def test_every_status_under_both_runners(judge, name, isolated):
    """By one process of a judge, and of solutions, as long as none has spoilt it."""
    limit = 0.5 if name == "hanging" else CONFIG.timeout_seconds
    result = judge(datasets.GEMM, GEMM_SOLUTIONS[name], isolated=isolated, timeout_seconds=limit)
    expected, message = STATUSES[name]
    assert status(result) == expected, result
    assert message in result.message
    assert ("so far" in result.log) == (name == "raising")


def test_what_one_solution_changes_is_not_what_the_next_one_meets(judge):
    spoiler = "import torch\ntorch.set_default_dtype(torch.float64)\n" + datasets.RIGHT[GEMM]
    honest = "import torch\n\ndef run(A, B):\n    return torch.zeros(len(A), len(B)) + A @ B.T\n"
    assert [status(judge(datasets.GEMM, source)) for source in (spoiler, honest)] == ["PASSED", "PASSED"]


def test_a_time_that_cannot_be_is_no_status_and_its_process_is_not_used_again(judge):
    forged = judge(datasets.GEMM, FORGED.format("1e3") + datasets.RIGHT[GEMM], isolated=False)
    assert (forged.status, forged.message[:60]) == (
        None,
        "impossible time: timed calls of 3000. s when all of it took ",
    )
    assert status(judge(datasets.GEMM, GEMM_SOLUTIONS["right"], isolated=False)) == "PASSED"


def test_traces_are_read_back_by_flashinfer_bench_and_never_overwritten(judge, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["nan"])
    jobs = [judge.job(datasets.GEMM, GEMM_SOLUTIONS[name]) for name in ("nan", "right")]
    results = [judge(datasets.GEMM, GEMM_SOLUTIONS[name]) for name in ("nan", "right")]
    folder = gemm.root / "traces"
    kept = folder / "tests/gemm" / f"{GEMM}.jsonl"
    first = ""
    for _ in range(2):
        for job, result in zip(jobs, results, strict=True):
            benchmark.recorded(job, result, folder)
        assert kept.read_text().startswith(first)
        first = kept.read_text()
    assert len(first.splitlines()) == 4
    theirs = TraceSet.from_path(str(gemm.root))
    assert [trace.evaluation.status.value for trace in theirs.traces[GEMM]] == ["INCORRECT_NUMERICAL", "PASSED"] * 2
    for trace in gemm.traces():
        assert set(trace) == set(Trace.model_json_schema()["properties"])
        assert trace["evaluation"]["environment"]["libs"]["torch"] == torch.__version__


def test_a_row_has_the_reference_beside_the_solution(session, gemm, pytester, build_cache):  # noqa: ARG001 - where it is built
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["wrong"])
    done = session(SET, *TRUSTED, "--perf-csv=run.csv")
    assert done.outcomes == {"passed": 1, "failed": 1}
    done.says(f"*{GEMM} on cpu*", "M4", "*right*")
    [row] = done.rows.values()
    said = row["extra_info"]
    assert row["stats"]["rounds"] == 6
    assert said["speedup"] == pytest.approx(said["reference_latency_s"] / said["latency_s"])
    assert (said["refcheck"], said["matched_ratio"], said["instrument"]) == ("passed", 1.0, "wall")
    assert row["params"] == {"routine": GEMM, "backend": "right", "N": 8, "K": 16, "M": 4}
    assert len((pytester.path / "run.csv").read_text().splitlines()) == 2
    assert gemm.statuses() == {"right": "PASSED", "wrong": "INCORRECT_NUMERICAL"}
    [trace] = [trace["evaluation"] for trace in gemm.traces() if trace["solution"] == "right"]
    assert trace["performance"]["latency_ms"] == pytest.approx(1e3 * said["latency_s"])
    again = session(*said["repro"].split()[1:3], "-k", said["case"], "--collect-only")
    again.says("*= 1/2 tests collected *")


def test_infinities_are_right_where_the_reference_has_them(judge):
    reference = "def run(A, B):\n    C = A @ B.T\n    C[0] = -float('inf')\n    return C\n"
    sources = (reference, reference.replace("-float('inf')", "0.0"), reference.replace("-float", "float"))
    definition = {**datasets.GEMM, "name": "gemm_with_infinities", "reference": reference}
    found = [status(judge(definition, source)) for source in sources]
    assert found == ["PASSED", "INCORRECT_NUMERICAL", "INCORRECT_NUMERICAL"]


def of_file(key):
    return {"type": "safetensors", "path": "blob/k.safetensors", "tensor_key": key}


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
        {"top_k": of_file("k")},
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
        {"seq_lens": of_file("lens"), "block_table": of_file("table")},
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


@pytest.mark.parametrize("kind", EVALUATED)
def test_each_evaluator_passes_what_is_right_and_sees_what_is_wrong(judge, kind):
    (judge.root / "blob").mkdir(exist_ok=True)
    table = torch.tensor([[0, 2, 4], [5, 1, 3]]).int()
    known = {"k": torch.tensor([3, 16]).int(), "lens": torch.tensor([5, 3]).int(), "table": table}
    save_file(known, judge.root / "blob/k.safetensors")
    definition, axes, inputs, *sources = EVALUATED[kind]
    extra = {"sampling_validation_trials": 10, "sampling_tvd_threshold": 0.2}
    found = [status(judge(definition, source, axes=axes, inputs=inputs, extra=extra)) for source in sources]
    assert found == ["PASSED", "INCORRECT_NUMERICAL"]


def test_a_reference_that_fails_or_answers_otherwise_than_declared_is_no_solutions_fault(judge):
    for other, sentence in (
        ("nothing", "its reference, its inputs or its evaluator fail: NameError"),
        ("(A @ B.T)[:1]", "C: the reference answers ("),
        ("(A @ B.T).double()", "C: the reference answers ("),
    ):
        result = judge({**datasets.GEMM, "reference": f"def run(A, B):\n    return {other}\n"}, GEMM_SOLUTIONS["right"])
        assert result.status is None
        assert sentence in result.message


def test_own_evaluators_come_first(judge):
    result = judge(datasets.GEMM, GEMM_SOLUTIONS["wrong"], evaluators=("traceset_runs:Lenient",), extra={"share": 0.5})
    assert (status(result), result.correctness.extra["matched_ratio"]) == ("PASSED", 0.5)


DOUBLE = "def run(A, B, C):\n    C.copy_(2 * A @ B.T)\n"
BY_THEIRS = {
    "right": (GEMM_SOLUTIONS["right"], "INCORRECT_NUMERICAL", "not the double at atol 0.25"),
    "double": (DOUBLE, "PASSED", ""),
    "doubled": ("def run(A, B):\n    return 2 * A @ B.T\n", "PASSED", ""),
    "later": (
        f"calls = []\n{DOUBLE}    calls.append(1)\n    len(calls) > 3 and C.zero_()\n",
        "INCORRECT_NUMERICAL",
        "not the double",
    ),
    "leaving": (GEMM_SOLUTIONS["leaving"], "RUNTIME_ERROR", "SystemExit: 0"),
}


@pytest.mark.parametrize("name", BY_THEIRS)
def test_an_evaluator_that_was_written_for_flashinfer_bench_judges(judge, name):
    source, expected, message = BY_THEIRS[name]
    result = judge(datasets.GEMM, source, evaluators=("traceset_runs:ByTheirs",), atol=0.25)
    assert status(result) == expected
    assert message in result.message


def test_an_evaluator_that_was_written_for_flashinfer_bench_is_named_as_it_is(judge):
    definition = judge.job(datasets.GEMM, DOUBLE).definition
    assert isinstance(evaluator_for(definition, ["their_evaluator:Doubled"]), FlashInferBenchEvaluator)
    with pytest.raises(TypeError, match="'datasets:DataSet' is not an evaluator of FlashInfer-Bench"):
        evaluator_for(definition, ["datasets:DataSet"])
