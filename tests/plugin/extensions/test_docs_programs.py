"""Programs of the documents are run as they are printed."""

import ast
import importlib
import re
import shutil

import hypothesis
import pytest
from documents import DOCS, EXAMPLES, README, ROOT, blocks, commands_of, each

from pytest_flashinfer_perf.gate import thresholds
from pytest_flashinfer_perf.plugin import terminal
from pytest_flashinfer_perf.routines.gemm.mm_bf16 import mm_bf16
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.settings import project_file

OWN, BACKEND = DOCS / "write-kernels.md", DOCS / "add-a-backend.md"
PREFILL = (
    "--routine BatchPrefillWithPagedKVCacheWrapper --backends torch --page_size 4 --batch_size 1 --s_qo 4 --s_kv 8 "
    "--num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 16"
)


def answers(done):
    return [row["extra_info"]["refcheck"] for row in done.rows.values()]


def test_the_readmes_program_runs_as_it_is_printed(session):
    [shown] = blocks(README, "console")
    command = re.match(r"\$ pytest (.*)\n", shown)[1].split()
    done = session(*command, test_my_kernel=blocks(README, "python")[0], quick=False)
    assert (done.outcomes, answers(done)) == ({"passed": 2}, ["passed"] * 2)
    assert f"{'':26}{terminal.HEADINGS}" in shown.splitlines()
    done.says(f"{'':26}{terminal.HEADINGS}", *["test_my_kernel.py::test_matmul[[]*]"] * 2)


def test_the_kernel_of_ones_own_is_measured_and_checked(session):
    program = (EXAMPLES / "test_norm.py").read_text()
    assert blocks(OWN, "python")[0] == program
    done = session(*commands_of(OWN)[0][1:], test_norm=program)
    assert (done.outcomes, answers(done)) == ({"passed": 2}, ["passed"] * 2)


@pytest.mark.filterwarnings("ignore:pytest_flashinfer_perf.extensions.compat")
@pytest.mark.parametrize(
    ("page", "nth", "printed"), [(README, 1, r".+ us by wall, .+ TB/s"), (OWN, 1, "20 none"), (OWN, 2, "20 True True")]
)
def test_a_script_of_the_documents_runs(capsys, page, nth, printed):
    exec(compile(blocks(page, "python")[nth], page.name, "exec"), {})
    assert re.fullmatch(f"{printed}\n", capsys.readouterr().out)


def test_the_example_of_a_search_in_ones_own_tests_runs_however_slow_the_machine(session):
    """No call meets hypothesis's deadline: what is searched turns it off by itself."""
    profile = "from hypothesis import settings as s\ns.register_profile('now', deadline=1e-3)\ns.load_profile('now')"
    try:
        assert session(test_own=blocks(DOCS / "fuzzing.md", "python")[0], conftest=profile).outcomes == {"passed": 1}
    finally:
        hypothesis.settings.load_profile("no deadline")


def test_the_settings_of_the_documents_are_understood(session, pytester):
    pytester.makefile(".toml", **{"flashinfer-perf": "\n".join(blocks(DOCS / "checking.md", "toml"))})
    done = session(f"--perf-case={PREFILL}", "--import-mode=importlib", "--perf-refcheck=only")
    assert (done.code, done.outcomes["passed"]) == (0, 1)


@pytest.fixture
def with_backend(monkeypatch):
    """Backends that a session adds to this routine are gone after it."""
    monkeypatch.setattr(mm_bf16, "backends", dict(mm_bf16.backends))


@pytest.mark.usefixtures("with_backend")
def test_the_backend_of_the_document_stands_beside_torch(session):
    done = session(*commands_of(BACKEND)[0][1:], test_my_backend=blocks(BACKEND, "python")[0])
    done.says("* mine  *", "*mine writes bfloat16 only: use torch")
    assert done.code == 0
    assert blocks(BACKEND, "python")[1] in (ROOT / "pytest_flashinfer_perf/routines/gemm/bmm.py").read_text()


@pytest.mark.usefixtures("with_backend")
def test_a_project_gives_its_tests_a_backend_and_thresholds(session, pytester):
    shutil.copytree(EXAMPLES / "project", pytester.path, dirs_exist_ok=True)
    done = session("-k", "mine or torch", "--perf-suite=smoke")
    done.says("* mine  *", "*mine writes bfloat16 only: use torch")
    assert done.code == 0
    held_to = thresholds.read(project_file.read(pytester.path / "flashinfer-perf.toml"))
    assert held_to.idle(run_file.read_all([pytester.path / "run.json"])[0].rows) == []


@pytest.mark.usefixtures("with_backend")
@pytest.mark.parametrize(("alpha", "outcomes"), [("p.scale", {"passed": 2}), ("1.0", {"failed": 2})])
def test_a_project_has_a_routine_of_its_own_that_is_checked(session, pytester, alpha, outcomes):
    shutil.copytree(EXAMPLES / "project", pytester.path, dirs_exist_ok=True)
    routine = pytester.path / "scaled_add.py"
    routine.write_text(routine.read_text().replace("alpha=p.scale", f"alpha={alpha}"))
    assert session("test_scaled_add.py", "--strict-markers").outcomes == outcomes


def imports_of(page):
    """What a page's programs import of ours."""
    nodes = [node for program in blocks(page, "python") for node in ast.walk(ast.parse(program))]
    return [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module.startswith("pytest_flashinfer_perf")]


@pytest.mark.parametrize("page", each(imports_of))
def test_what_programs_of_the_documents_import_is_there(page):
    for node in imports_of(page):
        module = importlib.import_module(node.module)
        for name in node.names:
            assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")
