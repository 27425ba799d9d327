"""FlashInfer-Bench's data sets: collected, trusted, and run from pytest, from a program and by the old command."""

import json
import multiprocessing.forkserver  # noqa: F401 - what pytester finds imported, it leaves: one server for all tests
import random
import re

import datasets
import mutations
import pytest
from datasets import DataSet, solution, workload
from traceset_runs import FAST, FORGED, GEMM, GEMM_SOLUTIONS, TRUSTED, rows, run

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.report import terminal
from pytest_flashinfer_perf.trace_sets import Benchmark, BenchmarkConfig, TraceSet, data
from pytest_flashinfer_perf.trace_sets.benchmark import RunnerError

pytestmark = pytest.mark.usefixtures("build_cache")


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
    named = run(pytester, "--perf-trace-set=set", *TRUSTED, "--collect-only")
    named.stdout.fnmatch_lines(["*= 1 test collected in *"])
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
    beside = run(pytester, "test_mine.py", "set", *TRUSTED, "--collect-only")
    beside.stdout.fnmatch_lines(["*= 2 tests collected in *"])
    assert not (pytester.path / "owned").exists()


def test_a_set_is_named_beside_tests_and_its_items_by_their_ids(pytester, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["returning"])
    pytester.makepyfile(test_mine="def test_mine():\n    pass")
    run(pytester, "test_mine.py", "set", *TRUSTED).assert_outcomes(passed=3)
    run(pytester, f"set::{GEMM}[right-M4-01234567]", *TRUSTED).assert_outcomes(passed=1)
    marked = ("--perf-trace-set=set", "-m", "perf(backend='right', M=4)", "--collect-only", "-q")
    found = [f"set::{GEMM}[[]right-M4-01234567[]]", "", "1/2 tests collected (1 deselected) in *"]
    run(pytester, *marked, *TRUSTED).stdout.fnmatch_lines(found, consecutive=True)
    elsewhere = pytester.mkdir("elsewhere")
    away = (f"--rootdir={elsewhere}", f"{gemm.root}::{GEMM}[right-M4-01234567]")
    run(pytester, *away, *TRUSTED, "-v").stdout.fnmatch_lines([f"set::{GEMM}[[]right-M4-01234567[]]*"])
    unknown = run(pytester, "set::none", *TRUSTED)
    assert unknown.ret == pytest.ExitCode.USAGE_ERROR


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


def test_a_program_has_all_devices_that_can_be_seen(pytester, gemm, monkeypatch):
    """Two judges, one for each, though here both are the CPU; the traces are in the order of the set."""
    monkeypatch.setattr(devices, "visible", lambda: ["cpu", "cpu"])
    gemm.define(datasets.GEMM, *(workload(GEMM, str(rows), {"M": rows}) for rows in (4, 5, 6)))
    meeting = f"import os, time\nos.mkdir({str(pytester.path)!r} + f'/judge-{{os.getppid()}}')\ntime.sleep(1)\n"
    gemm.solve(solution(GEMM, "meeting", meeting + datasets.RIGHT[GEMM]))
    config = BenchmarkConfig.default(iterations=2, num_trials=1, warmup_runs=0, use_isolated_runner=False)
    result = Benchmark(TraceSet.from_path(str(gemm.root)), config).run_all(save_results=False)
    assert [trace.workload.uuid for trace in result.traces[GEMM]] == ["4", "5", "6"]
    assert len(list(pytester.path.glob("judge-*"))) == 2
    assert gemm.traces() == []


def test_a_program_resumes(gemm):
    gemm.solve(GEMM_SOLUTIONS["right"])
    config = BenchmarkConfig.default(iterations=2, num_trials=1, warmup_runs=0)
    first = Benchmark(TraceSet.from_path(str(gemm.root)), config, device="cpu").run_all()
    gemm.solve(GEMM_SOLUTIONS["wrong"])
    again = Benchmark(TraceSet.from_path(str(gemm.root)), config, device="cpu").run_all(resume=True)
    names = [[trace.solution for trace in run.traces[GEMM]] for run in (first, again)]
    assert names == [["right"], ["wrong"]]
    assert gemm.statuses() == {"right": "PASSED", "wrong": "INCORRECT_NUMERICAL"}


def test_the_old_command_resumes_and_says_so(pytester, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"])
    command = ["--local", "set", "--iterations", "2", "--num-trials", "1", "--resume", "--log-level", "DEBUG"]
    arguments = cli.as_pytest([*command, "--", "--perf-device=cpu", "--perf-trust-solutions", "-rs"])
    assert "--perf-trace-option=log_level=DEBUG" in arguments
    run(pytester, *arguments).assert_outcomes(passed=1)
    gemm.solve(GEMM_SOLUTIONS["wrong"])
    result = run(pytester, *arguments)
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(["SKIPPED * evaluated already: its trace is there, and resume is asked for"])
    elsewhere = run(pytester, *arguments, "--perf-trace-output=elsewhere")
    elsewhere.assert_outcomes(passed=1, failed=1)
    with pytest.raises(SystemExit):
        cli.as_pytest(["--local", "set", "--log-level", "LOUD"])


def test_the_level_of_logging_is_that_of_flashinfer_bench_where_the_solution_is(pytester, gemm):
    said = "from flashinfer_bench.logging import get_logger\nget_logger('mine').info('built')\n"
    gemm.solve(solution(GEMM, "chatty", said + datasets.RIGHT[GEMM]))
    for level in ("WARNING", "INFO"):
        run(pytester, "set", *TRUSTED, f"--perf-trace-option=log_level={level}").assert_outcomes(passed=1)
    quiet, chatty = (trace["evaluation"]["log"] for trace in gemm.traces())
    assert "built" not in quiet
    assert "INFO flashinfer-bench.mine: built" in chatty


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
    result.stdout.fnmatch_lines(["rmsnorm_h128 on cpu *", f"*{terminal.HEADINGS}", "batch64", "  mine  *"])
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
