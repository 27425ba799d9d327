"""Programs of the documents are run as they are printed."""

import ast
import json
import re
import shutil
import subprocess
import sys

import hypothesis
import pytest
import torch
from documents import DOCS, EXAMPLES, QUICK, README, ROOT, blocks, commands_of, each

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.config import project_file
from pytest_flashinfer_perf.gate import proof, thresholds
from pytest_flashinfer_perf.gate import read as gate_read
from pytest_flashinfer_perf.report import terminal
from pytest_flashinfer_perf.routines.gemm.mm_bf16 import mm_bf16


@pytest.fixture(scope="module")
def readme():
    program, script = blocks(README, "python")
    [shown] = blocks(README, "console")
    return program, script, shown


def test_the_readmes_program_runs_as_it_is_printed(pytester, readme):
    program, _, shown = readme
    pytester.path.joinpath("test_my_kernel.py").write_text(program)
    command = re.match(r"\$ pytest (.*)\n", shown)[1].split()
    result = pytester.runpytest(*command)
    result.assert_outcomes(passed=2)
    assert f"{'':26}{terminal.HEADINGS}" in shown.splitlines()
    result.stdout.fnmatch_lines([f"{'':26}{terminal.HEADINGS}", *["test_my_kernel.py::test_matmul[[]*]"] * 2])
    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert [row["extra_info"]["refcheck"] for row in rows] == ["passed"] * 2


def test_what_the_readme_shows_are_the_sizes_that_its_program_has_on_a_gpu(monkeypatch, readme):
    program, _, shown = readme
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made = {}
    exec(compile(program, "test_my_kernel.py", "exec"), made)
    assert re.findall(r"^test_my_kernel.py::test_matmul\[(.*)\]$", shown, re.MULTILINE) == [
        str(n) for n in made["SIZES"]
    ]
    assert (made["DEVICE"], made["DTYPE"]) == ("cuda", torch.bfloat16)


def test_the_script_of_the_readme_runs(readme, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(readme[1])
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[\d.]+ us by wall, [\d.]+ TB/s\n", done.stdout)


def test_the_kernel_of_ones_own_is_measured_and_checked(pytester):
    page = DOCS / "own-kernel.md"
    program = (EXAMPLES / "test_norm.py").read_text()
    assert blocks(page, "python")[0] == program
    pytester.path.joinpath("test_norm.py").write_text(program)
    pytester.runpytest(*commands_of(page)[0][1:]).assert_outcomes(passed=2)
    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert {row["extra_info"]["refcheck"] for row in rows} == {"passed"}


def test_the_script_beside_it_runs(capsys):
    exec(compile(blocks(DOCS / "own-kernel.md", "python")[1], "own-kernel.md", "exec"), {})
    assert capsys.readouterr().out == "20 none\n"


@pytest.mark.filterwarnings("ignore:pytest_flashinfer_perf.compat")
def test_the_program_with_the_names_of_other_projects_runs(capsys):
    exec(compile(blocks(DOCS / "own-kernel.md", "python")[2], "own-kernel.md", "exec"), {})
    assert capsys.readouterr().out == "20 True 3\n"


@pytest.fixture
def impatient():
    """A machine on which no call meets hypothesis's deadline."""
    hypothesis.settings.register_profile("impatient", deadline=1)
    hypothesis.settings.load_profile("impatient")
    yield
    hypothesis.settings.load_profile("no deadline")


@pytest.mark.usefixtures("impatient")
def test_the_example_of_a_search_in_ones_own_tests_runs_on_a_slow_machine(pytester):
    pytester.makepyfile(blocks(DOCS / "fuzzing.md", "python")[0])
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_the_settings_of_the_documents_are_understood(pytester):
    pytester.makefile(".toml", **{"flashinfer-perf": "\n".join(blocks(DOCS / "checking.md", "toml"))})
    prefill = (
        "--routine BatchPrefillWithPagedKVCacheWrapper --backends torch --page_size 4 --batch_size 1 --s_qo 4 "
        "--s_kv 8 --num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 16"
    )
    arguments = [f"--perf-case={prefill}", "--import-mode=importlib", "--perf-refcheck=only", *QUICK]
    pytester.runpytest(*arguments).assert_outcomes(passed=1)


def test_the_backend_of_the_document_stands_beside_torch(pytester, monkeypatch):
    monkeypatch.setattr(mm_bf16, "backends", dict(mm_bf16.backends))
    page = DOCS / "add-a-backend.md"
    pytester.path.joinpath("test_my_backend.py").write_text(blocks(page, "python")[0])
    result = pytester.runpytest(*commands_of(page)[0][1:], *QUICK)
    result.stdout.fnmatch_lines(["* mine  *", "*mine writes bfloat16 only: use torch"])
    assert result.ret == 0


def test_a_project_gives_its_tests_a_backend_and_thresholds(pytester, monkeypatch):
    monkeypatch.setattr(mm_bf16, "backends", dict(mm_bf16.backends))
    shutil.copytree(EXAMPLES / "project", pytester.path, dirs_exist_ok=True)
    result = pytester.runpytest("-k", "mine or torch", "--perf-suite=smoke", *QUICK, "--benchmark-json=run.json")
    result.stdout.fnmatch_lines(["* mine  *", "*mine writes bfloat16 only: use torch"])
    assert result.ret == 0
    found = thresholds.read(project_file.read(pytester.path / "flashinfer-perf.toml"))
    assert found.idle(gate_read.read([pytester.path / "run.json"])[0].rows) == []


def test_the_step_of_the_examples_model_is_planned(capsys):
    assert cli.main(["model", str(EXAMPLES / "my-model.json"), "--batch", "8", "--plan"]) == 0
    assert "my-model: one decode step of 8 requests" in capsys.readouterr().out


def test_the_function_of_a_routines_file_is_as_it_stands_there():
    shown = blocks(DOCS / "add-a-backend.md", "python")[1]
    assert shown in (ROOT / "pytest_flashinfer_perf" / "routines" / "gemm" / "bmm.py").read_text()


def test_the_proof_of_the_document_is_of_its_program_and_says_what_is_allowed(pytester):
    page = DOCS / "gate.md"
    [program], [shown] = blocks(page, "python"), blocks(page, "console")
    pytester.path.joinpath("test_plain.py").write_text(program)
    pytester.runpytest("test_plain.py", *QUICK).assert_outcomes(passed=2)
    head, *lines = shown.splitlines()[2:]
    assert head == proof.HEADINGS
    assert [line for line in lines if "::" in line] == [f"test_plain.py::test_sort[{n}]" for n in (2000, 4000)]
    assert shown.endswith(f"{proof.MEANS[0]}\n")
    allowed = " ".join(shown.split()), " ".join(page.read_text().split())
    for limit, word in ((proof.MOST_SLOWER, "allowed"), (proof.MOST_FAILED, "allowed"), (proof.LEAST_FOUND, "wanted")):
        assert f"({limit:.0%} {word})" in allowed[0]
        assert f"{100 * limit:g} %" in allowed[1]


def imports_of(page):
    """Modules of ours that a page's programs import, and the names that they take from them."""
    nodes = [node for program in blocks(page, "python") for node in ast.walk(ast.parse(program))]
    ours = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return [node for node in ours if node.module.startswith("pytest_flashinfer_perf")]


@pytest.mark.parametrize("page", each(imports_of))
def test_what_programs_of_the_documents_import_is_there(page):
    for node in imports_of(page):
        module = ROOT / node.module.replace(".", "/")
        source = (module / "__init__.py" if module.is_dir() else module.with_suffix(".py")).read_text()
        assert all(name.name in source or (module / f"{name.name}.py").exists() for name in node.names)
