"""FlashInfer-Bench's data sets: collected, trusted, and run from pytest, from a program and by the old command."""

import json
import re
import runpy
from pathlib import Path

import datasets
import pytest
from datasets import DataSet, solution, workload
from traceset_runs import BY_ANY_TIME, FAST, FORGED, GEMM, GEMM_SOLUTIONS, SET, TRUSTED

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.testlists import run_command
from pytest_flashinfer_perf.extensions.trace_sets import Benchmark, BenchmarkConfig, TraceSet
from pytest_flashinfer_perf.extensions.trace_sets.benchmark import RunnerError
from pytest_flashinfer_perf.extensions.trace_sets.items import Way
from pytest_flashinfer_perf.plugin import terminal

pytestmark = pytest.mark.usefixtures("build_cache")
COLLECTED = (*TRUSTED, "--collect-only")
QUICK = {"iterations": 2, "num_trials": 1, "warmup_runs": 0, "evaluators": list(BY_ANY_TIME)}


def test_nothing_is_run_until_it_is_trusted(pytester, session, gemm):
    evil = f"import pathlib\npathlib.Path({str(pytester.path / 'owned')!r}).touch()\n"
    gemm.solve(solution(GEMM, "evil", evil + datasets.RIGHT[GEMM]))
    done = session(SET, *FAST)
    assert done.outcomes == {"skipped": 1}
    done.says("1 case skipped", "    1  solutions are other people's code*", "*--perf-trust-solutions")
    assert not (pytester.path / "owned").exists()
    assert not (gemm.root / "traces").exists()


def test_a_trace_that_cannot_be_written_in_the_end_is_a_failure_in_one_sentence(pytester, session, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"])
    (pytester.path / f"out/tests/gemm/{GEMM}.jsonl").mkdir(parents=True)
    done = session(SET, *TRUSTED, "--perf-trace-output=out")
    assert done.outcomes == {"failed": 1}
    done.says(f"*, but its trace is not written: *out/tests/gemm/{GEMM}.jsonl'")
    assert "Traceback" not in done.out


def test_traces_go_into_the_set_or_a_folder_or_nowhere():
    root = Path("set")
    assert [Way(output=one).traces(root) for one in (None, "", "there")] == [root / "traces", None, Path("there")]


@pytest.mark.parametrize("words", [("set", "--perf-trust-solutions"), (f"set::{GEMM}[right-M4-01234567]",)])
def test_pytest_walks_and_imports_nothing_of_a_set(pytester, session, gemm, words):
    """The official one has tests in `tests/references`. A worker of xdist evaluates its solutions, too."""
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["returning"])
    for name in ("conftest.py", "tests/test_gemm.py", "pytest.ini"):
        (gemm.root / name).parent.mkdir(exist_ok=True)
        owned = f"open({str(pytester.path / 'owned')!r}, 'w')\ndef test_it(): assert False\n"
        (gemm.root / name).write_text(owned if name.endswith(".py") else "[pytest]\n")
    refused = session(*words)
    assert refused.code == pytest.ExitCode.USAGE_ERROR
    refused.complains("*is a data set, whose files pytest would read: name it by --perf-trace-set=set, from a *")
    beside = session("test_mine.py", SET, *COLLECTED, test_mine="def test_mine():\n    pass")
    beside.says("*= 3 tests collected in *")
    assert session(SET, *TRUSTED, "-n", "1", "-m", "perf(backend='right', M=4)").outcomes == {"passed": 1}
    assert not (pytester.path / "owned").exists()


def test_a_set_outside_of_the_rootdir_has_ids_too(pytester, session, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"])
    away = (f"--rootdir={pytester.mkdir('elsewhere')}", f"--perf-trace-set={gemm.root}")
    session(*away, *COLLECTED, "-q").says(f"*set::{GEMM}[[]right-M4-01234567[]]*")


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


def test_what_cannot_be_used_names_file_and_field_and_fails_alone(session, gemm):
    gemm.solve(GEMM_SOLUTIONS["right"])
    for name, (text, _) in BROKEN.items():
        (gemm.root / name).write_text(text)
    (gemm.root / "definitions/link.json").symlink_to("/etc/hostname")
    done = session(SET, *FAST)
    assert done.outcomes == {"skipped": 1, "failed": len(BROKEN) + 1}
    for sentence in (*(said for _, said in BROKEN.values()), "definitions/link.json: is a link that leaves the data"):
        assert sentence in done.out


def test_a_definition_that_nobody_solves_is_said(session, gemm):
    assert gemm.statuses() == {}
    done = session(SET, *TRUSTED, "-rs")
    assert done.outcomes == {"skipped": 1}
    done.says(f"*{GEMM} has no solution in*")


@pytest.mark.usefixtures("gemm")
def test_an_option_or_a_config_that_is_not_understood_ends_the_run(pytester, session):
    (pytester.path / "c.yaml").write_text("definition_config:\n  x:\n    rtol: -1\n")
    for said, sentence in (
        ("--perf-trace-option=iteration=3", "*'iteration=3': must be NAME=VALUE, names are *"),
        ("--perf-trace-option=rtol=-3", "*the defaults: rtol: Input should be greater than 0*"),
        ("--perf-trace-config=c.yaml", "*c.yaml: definition_config.x.rtol: Input should be greater than 0*"),
        ("--perf-trace-set=none", "*none: has no folder called definitions*"),
    ):
        done = session(SET, said)
        assert done.code == pytest.ExitCode.USAGE_ERROR
        done.complains(sentence)


@pytest.mark.parametrize("kind", ["solutions", "definitions"])
def test_a_name_that_the_set_has_not_got_is_a_sentence_with_the_known_ones(session, gemm, kind):
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["wrong"])
    known = {"solutions": "did you mean right? known are right, wrong", "definitions": f"known are {GEMM}"}
    done = session(SET, *TRUSTED, f"--perf-trace-option={kind}=[rihgt]")
    assert done.code == pytest.ExitCode.INTERRUPTED
    done.says(f"*set: {kind}: unknown name 'rihgt', {known[kind]}")
    assert "Traceback" not in done.out
    assert "in collect" not in done.out


def test_a_program_meets_what_has_no_trace_when_all_else_has_one(gemm):
    gemm.solve(solution(GEMM, "a_forged", FORGED.format("1e3") + datasets.RIGHT[GEMM]), GEMM_SOLUTIONS["right"])
    config = BenchmarkConfig.default(**QUICK)
    with pytest.raises(RunnerError, match="gemm_n8_k16, a_forged: impossible time"):
        Benchmark(TraceSet.from_path(str(gemm.root)), config, device="cpu").run_all(save_results=True)
    assert gemm.statuses() == {"right": "PASSED"}


def test_the_smallest_set_of_the_documents_is_whole(pytester, session, pytestconfig):
    page = (pytestconfig.rootpath / "docs/trace-sets.md").read_text()
    files = re.findall(r"^`(flashinfer-trace/\S+)`[^\n]*\n\n```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert len(files) == 3
    for name, text in files:
        path = pytester.path / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    [(command, shown)] = re.findall(r"^```console\n\$ pytest (.*?)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    done = session(*command.split(), *FAST)
    assert done.outcomes == {"passed": 1}
    done.says("rmsnorm_h128 on cpu *", f"*{terminal.HEADINGS}", "batch64", "  mine  *")
    assert all(line in shown for line in (terminal.HEADINGS, "batch64", "  mine  ", "rmsnorm_h128 on cpu "))
    [trace] = re.findall(r"`(flashinfer-trace/traces/\S+)`", page)
    assert (pytester.path / trace).exists()


def test_the_documents_program_runs(pytester, gemm, pytestconfig):
    gemm.solve(GEMM_SOLUTIONS["right"])
    gemm.root.rename(pytester.path / "flashinfer-trace")
    page = (pytestconfig.rootpath / "docs/trace-sets.md").read_text()
    program = page.partition("```python\n")[2].partition("```")[0].replace("default()", f"default(**{QUICK})")
    runpy.run_path(str(pytester.makepyfile(script=program)), run_name="__main__")
    assert len(DataSet.traces(gemm, pytester.path / "flashinfer-trace/traces")) == 1


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("", ""),
        ("--use-isolated-runner", "--perf-trace-option=use_isolated_runner=True"),
        ("--no-use-isolated-runner", "--perf-trace-option=use_isolated_runner=False"),
        ("--timeout 50", "--perf-trace-option=timeout_seconds=50"),
        ("--solutions right wrong", '--perf-trace-option=solutions=["right", "wrong"]'),
        ("--no-profile-baseline", "--perf-trace-option=profile_baseline=false"),
    ],
)
def test_a_flag_of_the_old_command_is_a_field_of_its_config(words, option):
    [first, *options] = run_command.as_pytest(f"run --local set {words}".split()[1:])
    assert first == "--perf-trace-set=set"
    assert [one for one in options if "trace" in one] == [option] * bool(option)


def test_the_old_command_prints_a_line_for_each_solution(pytester, gemm, capsys):
    gemm.solve(GEMM_SOLUTIONS["right"], GEMM_SOLUTIONS["wrong"])
    (pytester.path / "my_config.yaml").write_text("definition_config:\n  gemm_n8_k16:\n    rtol: 0.001\n")
    pytester.chdir()
    command = "run --local set --config my_config.yaml --rtol 0.5 --iterations 4 --num-trials 1 --no-save-results"
    beside = ("--perf-trust-solutions", "--perf-device=cpu", "--benchmark-json=run.json", FAST[-1])
    assert cli.main([*command.split(), "--", *beside]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"^\[PERF\] right +:: median time [\d.]+ ms; std [\d.]+ ms$", shown, re.MULTILINE)
    assert f"[ERROR] Error running test: {GEMM}[wrong-M4-01234567]" in shown
    assert json.loads((pytester.path / "run.json").read_text())["benchmarks"][0]["stats"]["rounds"] == 4
    assert not (gemm.root / "traces").exists()
