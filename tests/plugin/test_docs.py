"""What the documents say is run, or looked up in the code."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from pytest_flashinfer_perf.report import terminal

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
QUICK = ("--perf-iters=3", "--perf-device=cpu", "-p", "no:cacheprovider")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_readmes_program_runs_and_prints_what_the_readme_shows(pytester):
    program, shown = blocks(ROOT / "README.md", "python")[0], blocks(ROOT / "README.md", "console")[0]
    pytester.path.joinpath("test_my_kernel.py").write_text(program)
    command = re.match(r"\$ pytest (.*)\n", shown)[1].split()
    result = pytester.runpytest(*command, *QUICK)
    result.assert_outcomes(passed=2)
    assert terminal.HEADINGS in shown.splitlines()
    for line in (terminal.HEADINGS, "test_my_kernel.py::test_matmul[[]1024]", "test_my_kernel.py::test_matmul[[]2048]"):
        result.stdout.fnmatch_lines([line])
        assert line.replace("[[]", "[") in shown
    assert (pytester.path / "run.json").exists()


@pytest.mark.parametrize("program", [p for p in blocks(ROOT / "README.md", "python") if "def test_" not in p])
def test_a_script_of_the_readme_runs(program, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(program)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[\d.]+ us by wall, [\d.]+ TB/s\n", done.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_of_the_documents_exist(page, pytestconfig):
    for option in set(re.findall(r"--perf-[a-z0-9-]+", page.read_text())):
        assert hasattr(pytestconfig.option, option.removeprefix("--").replace("-", "_")), option


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


PREFILL = "--page_size 4 --batch_size 1 --s_qo 4 --s_kv 8 --num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 16 -vv"
MOE = "--num_tokens 2 --hidden_size 16 --intermediate_size 16 --num_experts 2 --top_k 1"
CASES = (
    f"--routine BatchPrefillWithPagedKVCacheWrapper {PREFILL} --backends torch",
    f"--routine cutlass_fused_moe {MOE} --backends torch",
)


def test_every_field_of_a_row_is_documented(pytester):
    arguments = ["--import-mode=importlib", "--benchmark-json=run.json", *QUICK]
    pytester.runpytest(*(f"--perf-case={case}" for case in CASES), *arguments).assert_outcomes(passed=2)
    import json

    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    written = {name for row in rows for name in row["extra_info"]}
    first_columns = re.findall(r"^\|([^|]+)\|", (ROOT / "docs" / "row.md").read_text(), re.MULTILINE)
    documented = {name for column in first_columns for name in re.findall(r"`(\w+)`", column)}
    assert documented == written


def test_the_architecture_names_the_rooms_that_are():
    text = (ROOT / "docs" / "architecture.md").read_text()
    package = ROOT / "pytest_flashinfer_perf"
    names = {path.name for path in package.rglob("*.py") if "routines" not in path.parts} - {"__init__.py"}
    assert {name for name in names if name not in text} == set()
    for name in re.findall(r"\b[a-z_]+\.py\b", text):
        assert list(package.rglob(name)) or list((ROOT / "tests").rglob(name)), name


def test_the_support_matrix_is_what_the_library_and_the_evidence_say():
    written = (ROOT / "docs" / "support-matrix.md").read_text()
    installed = metadata.version("flashinfer-python")
    if f"with FlashInfer {installed} installed" not in written:
        pytest.skip(f"the matrix is of another FlashInfer than {installed}, which declares other backends")
    script = ROOT / "benchmarks" / "support_matrix.py"
    made = subprocess.run([sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=True).stdout
    assert made == written


def test_the_example_of_a_search_in_ones_own_tests_runs(pytester):
    pytester.makepyfile(blocks(ROOT / "docs" / "fuzzing.md", "python")[0])
    pytester.runpytest("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_the_settings_of_the_documents_are_understood(pytester):
    written = "\n".join(blocks(ROOT / "docs" / "checking.md", "toml"))
    pytester.makefile(".toml", **{"flashinfer-perf": written})
    arguments = [f"--perf-case={CASES[0]}", "--import-mode=importlib", "--perf-refcheck=only", *QUICK]
    pytester.runpytest(*arguments).assert_outcomes(passed=1)


def test_the_commands_of_the_documents_collect(pytester):
    for block in blocks(ROOT / "docs" / "fuzzing.md", "bash"):
        command = block.split()[1:]
        result = pytester.runpytest(str(ROOT / "tests" / "gemm"), *command, "--collect-only", "-q", *QUICK)
        result.stdout.fnmatch_lines(["*test_bmm_fp8[[]fuzz-cublas]*"])


def test_the_nightly_job_names_options_and_profiles_that_there_are():
    from hypothesis import settings

    [job] = blocks(ROOT / "docs" / "fuzzing.md", "yaml")
    [profile] = re.findall(r"--hypothesis-profile=(\S+)", job)
    assert settings.get_profile(profile).max_examples == 5000


def test_every_scheduler_of_the_documents_passes_its_own_index():
    """The commands as a shell sees them, with the index that each scheduler sets."""
    from pytest_flashinfer_perf.running import shards

    text = (ROOT / "docs" / "many.md").read_text()
    given = {"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_COUNT": "8", "JOB_COMPLETION_INDEX": "7"}
    said = re.findall(r"--perf-shard=((?:\$\(\(.*?\)\)|[^\s`])+)", text.replace("${{ matrix.shard }}", "4"))
    shell = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(one for one in said if one != 'i/n')}"],
        env=given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [shards.parse(one) for one in shell.stdout.split()] == [(2, 8), (4, 4), (8, 8), (8, 8)]
