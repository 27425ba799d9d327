"""FlashInfer-Bench's data sets: collected, trusted, evaluated, and written as traces it reads back."""

import json
import multiprocessing.forkserver  # noqa: F401 - what pytester finds imported, it leaves: one server for all tests
import random
import re

import datasets
import mutations
import pytest
import torch
from datasets import DataSet, solution, workload
from flashinfer_bench.data import Definition, Trace
from safetensors.torch import save_file

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.report import terminal
from pytest_flashinfer_perf.spec.cost import Peaks
from pytest_flashinfer_perf.trace_sets import Benchmark, BenchmarkConfig, TraceSet, data, plausible
from pytest_flashinfer_perf.trace_sets.child import Job
from pytest_flashinfer_perf.trace_sets.config import Resolved
from pytest_flashinfer_perf.trace_sets.runner import RunnerError

FAST = ("--perf-device=cpu", "--perf-trace-option=iterations=3", "--perf-trace-option=warmup_runs=1")
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


@pytest.fixture(autouse=True)
def build_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path_factory.getbasetemp() / "builds"))


@pytest.fixture
def gemm(pytester):
    """A set with one workload of a GEMM, and no solution yet."""
    random = {"A": {"type": "random"}, "B": {"type": "random"}}
    return DataSet(pytester.path / "set").define(datasets.GEMM, workload(GEMM, "0123456789", {"M": 4}, **random))


def run(pytester, *arguments):
    return pytester.runpytest_inprocess(*arguments, "-p", "no:cacheprovider")


def rows(pytester):
    return json.loads((pytester.path / "run.json").read_text())["benchmarks"]


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
FORGED = """from dataclasses import replace
from pytest_flashinfer_perf.trace_sets import child

judged = child._judged

def forged(*given):
    seen = judged(*given)
    return replace(seen, timings=tuple(replace(t, samples=({}, ) * len(t.samples)) for t in seen.timings))

child._judged = forged
"""


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


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        ("1e-9", "0.001000 us per call, but a call that does nothing takes at least *"),
        ("1e3", "timed calls of 6000. s in a job that took *"),
        ("float('nan')", "timed calls of nan s in a job that took *"),
    ],
)
def test_a_time_that_cannot_be_is_no_trace(pytester, gemm, seconds, sentence):
    gemm.solve(solution(GEMM, "forged", FORGED.format(seconds) + datasets.RIGHT[GEMM]))
    result = run(pytester, "set", *TRUSTED)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"impossible time: {sentence}"])
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


def test_nothing_is_run_until_it_is_trusted(pytester, gemm):
    evil = f"import pathlib\npathlib.Path({str(pytester.path / 'owned')!r}).touch()\n"
    gemm.solve(solution(GEMM, "evil", evil + datasets.RIGHT[GEMM]))
    result = run(pytester, "set", *FAST)
    result.assert_outcomes(skipped=1)
    reason = ["    1  solutions are other people's code*", "*--perf-trust-solutions"]
    result.stdout.fnmatch_lines(["1 case skipped", *reason])
    assert not (pytester.path / "owned").exists()
    assert not (gemm.root / "traces").exists()


def test_traces_that_cannot_be_written_are_an_error_before_a_solution_is_run(pytester, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"])
    done = run(pytester, "set", *TRUSTED, "--perf-trace-output=/proc")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: --perf-trace-output: *'/proc/any.jsonl'"])
    run(pytester, "set", *TRUSTED, "--perf-trace-output=").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("name", "text"),
    [("conftest.py", ""), ("tests/conftest.py", ""), ("pytest.ini", "[pytest]\n"), ("tox.ini", "[pytest]\n")],
)
def test_a_set_that_brings_code_for_pytest_is_refused_and_can_be_named(pytester, gemm, name, text):
    gemm.solve(GEMM_SOLUTIONS["right"])
    strange = gemm.root / name
    strange.parent.mkdir(exist_ok=True)
    strange.write_text(text or f"open({str(pytester.path / 'owned')!r}, 'w')\n")
    refused = run(pytester, "set", *TRUSTED)
    assert refused.ret == pytest.ExitCode.USAGE_ERROR
    refused.stderr.fnmatch_lines([f"*is a data set with a {name}, which pytest would read: name the set by*"])
    named = run(pytester, "--perf-trace-set=set", *TRUSTED)
    named.assert_outcomes(passed=1)
    assert not (pytester.path / "owned").exists()


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_the_tests_of_the_official_set_are_not_collected_and_not_imported(pytester, gemm, workers):
    """Its checkout has `tests/references/test_*.py`."""
    gemm.solve(GEMM_SOLUTIONS["right"])
    references = gemm.root / "tests" / "references"
    references.mkdir(parents=True)
    for name in ("test_gemm.py", "gemm_test.py", "__init__.py"):
        (references / name).write_text(f"open({str(pytester.path / 'owned')!r}, 'w')\ndef test_it(): assert False\n")
    run(pytester, "set", *TRUSTED, *workers).assert_outcomes(passed=1)
    pytester.makepyfile(test_mine="def test_mine():\n    pass")
    run(pytester, "test_mine.py", "set", *TRUSTED).assert_outcomes(passed=2)
    assert not (pytester.path / "owned").exists()


def test_a_set_is_named_beside_tests_and_its_items_by_their_ids(pytester, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["returning"])
    pytester.makepyfile(test_mine="def test_mine():\n    pass")
    run(pytester, "test_mine.py", "set", *TRUSTED).assert_outcomes(passed=3)
    run(pytester, f"set::{GEMM}[right-M4-01234567]", *TRUSTED).assert_outcomes(passed=1)
    run(pytester, "--perf-trace-set=set", *TRUSTED, "-m", "perf(backend='right', M=4)").assert_outcomes(passed=1)
    elsewhere = pytester.mkdir("elsewhere")
    away = (f"--rootdir={elsewhere}", f"{gemm.root}::{GEMM}[right-M4-01234567]")
    run(pytester, *away, *TRUSTED, "-v").stdout.fnmatch_lines([f"set::{GEMM}[[]right-M4-01234567[]]*"])
    unknown = run(pytester, "set::none", *TRUSTED)
    assert unknown.ret == pytest.ExitCode.USAGE_ERROR


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


@pytest.mark.parametrize("kind", EVALUATED)
def test_each_evaluator_passes_what_is_right_and_sees_what_is_wrong(pytester, kind):
    definition, axes, inputs, right, wrong = EVALUATED[kind]
    made = DataSet(pytester.path / "set")
    (made.root / "blob").mkdir()
    table = torch.tensor([[0, 2, 4], [5, 1, 3]]).int()
    save_file(
        {"k": torch.tensor([3, 16]).int(), "lens": torch.tensor([5, 3]).int(), "table": table},
        made.root / "blob/k.safetensors",
    )
    made.define(definition, workload(definition["name"], "w", axes, **inputs))
    returns = kind != "default"
    made.solve(*(solution(definition["name"], n, s, returns=returns) for n, s in (("right", right), ("wrong", wrong))))
    run(pytester, "set", *TRUSTED).assert_outcomes(passed=1, failed=1)
    assert made.statuses() == {"right": "PASSED", "wrong": "INCORRECT_NUMERICAL"}


BROKEN = {
    "definitions/broken.json": ("{", "definitions/broken.json: the whole: Invalid JSON"),
    "definitions/dtype.json": (
        json.dumps({**datasets.GEMM, "name": "d", "outputs": {"C": {"shape": ["M"], "dtype": "float3"}}}),
        "definitions/dtype.json: outputs.C.dtype: Input should be 'float32'",
    ),
    "definitions/up.json": (json.dumps({**datasets.GEMM, "name": ".."}), "definitions/up.json: name: '..' cannot be"),
    "solutions/orphan.json": (
        json.dumps(solution("nobody", "orphan", "x")),
        "solutions/orphan.json: definition: 'nobody' does not exist",
    ),
    "solutions/author.json": (
        json.dumps(solution(GEMM, "author", "x", author="../up")),
        "solutions/author.json: author: '../up' cannot be the name of a file",
    ),
    "workloads/axis.jsonl": (
        "\n" + json.dumps(workload(GEMM, "a", {})),
        "workloads/axis.jsonl:2: workload.axes.M: is missing",
    ),
    "workloads/blob.jsonl": (
        json.dumps(workload(GEMM, "b", {"M": 1}, A={"type": "safetensors", "path": "blob/no.st", "tensor_key": "A"})),
        "workloads/blob.jsonl:1: workload.inputs.A.path: blob/no.st does not exist",
    ),
    "workloads/out.jsonl": (
        json.dumps(workload(GEMM, "c", {"M": 1}, A={"type": "safetensors", "path": "../x", "tensor_key": "A"})),
        "workloads/out.jsonl:1: workload.inputs.A.path: ../x leaves the data set",
    ),
    "workloads/input.jsonl": (
        json.dumps(workload(GEMM, "d", {"M": 1}, Z={"type": "random"})),
        f"workloads/input.jsonl:1: workload.inputs.Z: {GEMM} has no such input",
    ),
}


def test_what_cannot_be_used_names_file_and_field_and_fails_alone(pytester, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"])
    for name, (text, _) in BROKEN.items():
        (gemm.root / name).write_text(text)
    (gemm.root / "definitions/link.json").symlink_to("/etc/hostname")
    result = run(pytester, "set", *TRUSTED)
    result.assert_outcomes(passed=1, failed=len(BROKEN) + 1)
    for _, sentence in BROKEN.values():
        assert sentence in result.stdout.str()
    assert "definitions/link.json: is a link that leaves the data set" in result.stdout.str()


def test_mutated_sets_through_pytest(pytester, gemm):
    """Whatever a file holds, every other one is collected, and nothing ends the run."""
    gemm.solve(GEMM_SOLUTIONS["right"])
    files = sorted(path for path in gemm.root.rglob("*.json*"))
    texts = {path: path.read_text() for path in files}
    for seed in range(15):
        mutated = files[seed % len(files)]
        mutated.write_text(mutations.mutated(random.Random(seed), texts[mutated], 1 + seed), encoding="utf-8")
        result = run(pytester, "set", "--perf-device=cpu", "--perf-trace-option=iterations=1")
        found = data.read(gemm.root)
        assert result.ret in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
        assert result.parseoutcomes().get("failed", 0) == len(found.problems)
        assert sum(result.parseoutcomes().values()) >= 1
        assert "Traceback" not in result.stdout.str()
        mutated.write_text(texts[mutated])


def test_a_definition_that_nobody_solves_is_said(pytester, gemm):
    assert gemm.statuses() == {}
    result = run(pytester, "set", *TRUSTED, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"*{GEMM} has no solution in*"])


def test_a_reference_that_fails_is_no_solutions_fault(pytester):
    broken = {**datasets.GEMM, "reference": "def run(A, B):\n    return nothing\n"}
    made = DataSet(pytester.path / "set").define(broken, workload(GEMM, "w", {"M": 2}))
    made.solve(GEMM_SOLUTIONS["right"])
    result = run(pytester, "set", *TRUSTED)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*its reference or its inputs fail: NameError*"])
    assert made.traces() == []


@pytest.mark.usefixtures("gemm")
def test_an_option_or_a_config_that_is_not_understood_ends_the_run(pytester):
    (pytester.path / "c.yaml").write_text("definition_config:\n  x:\n    rtol: -1\n")
    for said, sentence in (
        ("--perf-trace-option=iteration=3", "*'iteration=3': must be NAME=VALUE, names are *"),
        ("--perf-trace-option=rtol=-3", "*the defaults: rtol: Input should be greater than 0*"),
        ("--perf-trace-config=c.yaml", "*c.yaml: definition_config.x.rtol: Input should be greater than 0*"),
        ("--perf-trace-set=none", "*none: has no folder called definitions*"),
    ):
        result = run(pytester, "set", said)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([sentence])


@pytest.mark.parametrize("kind", ["solutions", "definitions"])
def test_a_name_that_the_set_has_not_got_is_a_sentence_with_the_known_ones(pytester, gemm, kind):
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["slow"])
    known = {"solutions": "did you mean right? known are right, slow", "definitions": f"known are {GEMM}"}
    result = run(pytester, "set", *TRUSTED, f"--perf-trace-option={kind}=[rihgt]")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*set: {kind}: unknown name 'rihgt', {known[kind]}"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*in collect*")


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


def test_from_a_program(gemm):
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["wrong"])
    config = BenchmarkConfig.default(iterations=2, num_trials=1, warmup_runs=0, solutions=["right"])
    result = Benchmark(TraceSet.from_path(str(gemm.root)), config, device="cpu").run_all(save_results=True)
    assert [trace.evaluation.status.value for trace in result.traces[GEMM]] == ["PASSED"]
    assert gemm.statuses() == {"right": "PASSED"}


def test_a_program_meets_what_has_no_trace_when_all_else_has_one(gemm):
    gemm.solve(solution(GEMM, "a_forged", FORGED.format("1e-9") + datasets.RIGHT[GEMM]), GEMM_SOLUTIONS["right"])
    config = BenchmarkConfig.default(iterations=2, num_trials=1, warmup_runs=0)
    with pytest.raises(RunnerError, match="gemm_n8_k16, a_forged: impossible time"):
        Benchmark(TraceSet.from_path(str(gemm.root)), config, device="cpu").run_all(save_results=True)
    assert gemm.statuses() == {"right": "PASSED"}


def test_the_smallest_set_of_the_documents_is_whole(pytester, pytestconfig):
    page = (pytestconfig.rootpath / "docs/trace-sets.md").read_text()
    files = re.findall(r"^`(flashinfer-trace/\S+)`[^\n]*\n\n```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(files) == 3
    for name, text in files:
        path = pytester.path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    [(command, shown)] = re.findall(r"^```console\n\$ pytest (.*?)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    result = run(pytester, *command.split(), *FAST)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["rmsnorm_h128 on cpu *", terminal.HEADINGS, "batch64", "  mine  *"])
    assert all(line in shown for line in (terminal.HEADINGS, "batch64", "  mine  ", "rmsnorm_h128 on cpu "))
    [trace] = re.findall(r"`(flashinfer-trace/traces/\S+)`", page)
    assert (pytester.path / trace).exists()


def test_the_documents_program_runs(pytester, gemm, pytestconfig):
    gemm.solve(GEMM_SOLUTIONS["right"])
    gemm.root.rename(pytester.path / "flashinfer-trace")
    page = (pytestconfig.rootpath / "docs/trace-sets.md").read_text()
    script = pytester.makepyfile(script=page.partition("```python\n")[2].partition("```")[0])
    assert pytester.runpython(script).ret == 0
    assert len(DataSet.traces(gemm, pytester.path / "flashinfer-trace/traces")) == 1


@pytest.mark.parametrize("isolated", ["", "--use-isolated-runner", "--no-use-isolated-runner"])
def test_the_old_command(pytester, gemm, isolated):
    gemm.solve(GEMM_SOLUTIONS["right"])
    (pytester.path / "my_config.yaml").write_text("definition_config:\n  gemm_n8_k16:\n    rtol: 0.001\n")
    command = "run --local set --config my_config.yaml --rtol 0.5 --iterations 4 --num-trials 1 --solutions right"
    beside = f"{isolated} --timeout 50 --no-save-results -- --perf-device=cpu --perf-trust-solutions"
    arguments = cli.as_pytest(f"{command} {beside}".split()[1:])
    run(pytester, *arguments, "--benchmark-json=run.json").assert_outcomes(passed=1)
    assert rows(pytester)[0]["stats"]["rounds"] == 4
    assert not (gemm.root / "traces").exists()


def test_the_old_command_prints_a_line_for_each_solution(pytester, gemm, capsys):
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["returning"], GEMM_SOLUTIONS["wrong"])
    pytester.chdir()
    command = "run --local set --iterations 3 --num-trials 1 -- --perf-trust-solutions --perf-device=cpu"
    assert cli.main(command.split()) == 1
    shown = capsys.readouterr().out
    for name in ("right", "returning"):
        assert re.search(rf"^\[PERF\] {name} +:: median time [\d.]+ ms; std [\d.]+ ms$", shown, re.MULTILINE)
    assert f"[ERROR] Error running test: {GEMM}[wrong-M4-01234567]" in shown
