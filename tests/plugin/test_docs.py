"""What the documents say is run, or looked up in the code."""

import ast
import contextlib
import io
import json
import re
import runpy
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import hypothesis
import pytest
import torch

from pytest_flashinfer_perf import cli, routines
from pytest_flashinfer_perf.gate import proof, proof_shown
from pytest_flashinfer_perf.machine import capability
from pytest_flashinfer_perf.report import markdown, runs, terminal
from pytest_flashinfer_perf.routines.gemm.mm_bf16 import mm_bf16
from pytest_flashinfer_perf.spec import case, flags

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
EVIDENCE = ROOT / "docs" / "evidence"
QUICK = ("--perf-iters=3", "--perf-device=cpu", "-p", "no:cacheprovider")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_the_readmes_program_runs_as_it_is_printed(pytester):
    program, shown = blocks(ROOT / "README.md", "python")[0], blocks(ROOT / "README.md", "console")[0]
    pytester.path.joinpath("test_my_kernel.py").write_text(program)
    command = re.match(r"\$ pytest (.*)\n", shown)[1].split()
    result = pytester.runpytest(*command)
    result.assert_outcomes(passed=2)
    assert terminal.HEADINGS in shown.splitlines()
    result.stdout.fnmatch_lines([terminal.HEADINGS, *["test_my_kernel.py::test_matmul[[]*]"] * 2])
    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert [row["extra_info"]["refcheck"] for row in rows] == ["passed"] * 2


def test_what_the_readme_shows_are_the_sizes_that_its_program_has_on_a_gpu(monkeypatch):
    program, shown = blocks(ROOT / "README.md", "python")[0], blocks(ROOT / "README.md", "console")[0]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made = {}
    exec(compile(program, "test_my_kernel.py", "exec"), made)
    assert re.findall(r"^test_my_kernel.py::test_matmul\[(.*)\]$", shown, re.MULTILINE) == [
        str(n) for n in made["SIZES"]
    ]
    assert (made["DEVICE"], made["DTYPE"]) == ("cuda", torch.bfloat16)


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
    for target, _, section in (link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", page.read_text())):
        if not target.startswith("https://"):
            found = page.parent / target if target else page
            assert found.exists(), target
            assert not section or section in sections(found), f"{target}#{section}"


def sections(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


PREFILL = "--page_size 4 --batch_size 1 --s_qo 4 --s_kv 8 --num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 16 -vv"
MOE = "--num_tokens 2 --hidden_size 16 --intermediate_size 16 --num_experts 2 --top_k 1"
CASES = (
    f"--routine BatchPrefillWithPagedKVCacheWrapper {PREFILL} --backends torch",
    f"--routine cutlass_fused_moe {MOE} --backends torch",
)


def test_every_field_of_a_row_is_documented(pytester):
    arguments = ["--import-mode=importlib", "--benchmark-json=run.json", *QUICK]
    pytester.runpytest(*(f"--perf-case={case}" for case in CASES), *arguments).assert_outcomes(passed=2)
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


def test_the_support_matrix_is_what_the_library_and_the_evidence_say(capsys):
    written = (ROOT / "docs" / "support-matrix.md").read_text()
    installed = metadata.version("flashinfer-python")
    if f"with FlashInfer {installed} installed" not in written:
        pytest.skip(f"the matrix is of another FlashInfer than {installed}, which declares other backends")
    runpy.run_path(ROOT / "benchmarks" / "support_matrix.py", run_name="__main__")
    assert capsys.readouterr().out == written


@pytest.fixture
def impatient():
    """A machine on which no call meets hypothesis's deadline."""
    hypothesis.settings.register_profile("impatient", deadline=1)
    hypothesis.settings.load_profile("impatient")
    yield
    hypothesis.settings.load_profile("no deadline")


@pytest.mark.usefixtures("impatient")
def test_the_example_of_a_search_in_ones_own_tests_runs_on_a_slow_machine(pytester):
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
    [job] = blocks(ROOT / "docs" / "fuzzing.md", "yaml")
    [profile] = re.findall(r"--hypothesis-profile=(\S+)", job)
    assert hypothesis.settings.get_profile(profile).max_examples == 5000


def test_the_kernel_of_ones_own_is_measured_and_checked(pytester):
    program, command = (
        blocks(ROOT / "docs" / "own-kernel.md", "python")[0],
        commands_of(ROOT / "docs" / "own-kernel.md")[0],
    )
    pytester.path.joinpath("test_norm.py").write_text(program)
    pytester.runpytest(*command[1:]).assert_outcomes(passed=2)
    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert {row["extra_info"]["refcheck"] for row in rows} == {"passed"}


def test_the_script_beside_it_runs(capsys):
    exec(compile(blocks(ROOT / "docs" / "own-kernel.md", "python")[1], "own-kernel.md", "exec"), {})
    assert capsys.readouterr().out == "20 none\n"


def test_the_backend_of_the_document_stands_beside_torch(pytester, monkeypatch):
    monkeypatch.setattr(mm_bf16, "backends", dict(mm_bf16.backends))
    page = ROOT / "docs" / "add-a-backend.md"
    pytester.path.joinpath("test_my_backend.py").write_text(blocks(page, "python")[0])
    result = pytester.runpytest(*commands_of(page)[0][1:], *QUICK)
    result.stdout.fnmatch_lines(["* mine  *", "*mine writes bfloat16 only: use torch"])
    assert result.ret == 0


def test_the_proof_of_the_document_is_of_its_program_and_says_what_is_allowed(pytester):
    page = ROOT / "docs" / "gate.md"
    [program], [shown] = blocks(page, "python"), blocks(page, "console")
    pytester.path.joinpath("test_plain.py").write_text(program)
    pytester.runpytest("test_plain.py", *QUICK).assert_outcomes(passed=2)
    head, *lines = shown.splitlines()[2:]
    assert head == proof_shown.HEADINGS
    assert [line for line in lines if "::" in line] == [f"test_plain.py::test_sort[{n}]" for n in (2000, 4000)]
    assert shown.endswith(f"{proof_shown.MEANS[0]}\n")
    allowed = " ".join(shown.split()), " ".join(page.read_text().split())
    for limit, word in ((proof.MOST_SLOWER, "allowed"), (proof.MOST_FAILED, "allowed"), (proof.LEAST_FOUND, "wanted")):
        assert f"({limit:.0%} {word})" in allowed[0]
        assert f"{100 * limit:g} %" in allowed[1]


@pytest.fixture
def scanned(pytester, monkeypatch):
    """A folder that is scanned for routines like the package's own."""
    monkeypatch.setattr(routines, "__path__", [*routines.__path__, str(pytester.path)])
    routines.all_routines.cache_clear()
    yield pytester.path
    routines.all_routines.cache_clear()
    sys.modules.pop(f"{routines.__name__}.rmsnorm", None)
    vars(routines).pop("rmsnorm", None)


def test_the_routine_of_the_document_is_one_file_that_is_found_measured_and_repeated(pytester, scanned):
    page = ROOT / "docs" / "add-a-routine.md"
    routine, test = blocks(page, "python")
    (scanned / "rmsnorm.py").write_text(routine)
    (scanned / "test_rmsnorm.py").write_text(test)
    assert f"{len(routine.splitlines())} lines, and {len(test.splitlines())} of its test" in page.read_text()
    measured, searched, repeated = (command[1:] for command in commands_of(page))
    arguments = ["test_rmsnorm.py", "-o", "markers=norm", *QUICK]
    pytester.runpytest(*measured, *arguments[1:]).assert_outcomes(passed=2, skipped=2)
    case_of_torch = repeated[0].replace("--backends cuda", "--backends torch")
    pytester.runpytest(*arguments, case_of_torch).assert_outcomes(passed=1)
    pytester.runpytest(*searched, "--collect-only", *arguments[1:]).stdout.fnmatch_lines(
        ["*fuzz-torch*", "*fuzz-cuda*"]
    )


def test_the_function_of_a_routines_file_is_as_it_stands_there():
    shown = blocks(ROOT / "docs" / "add-a-backend.md", "python")[1]
    assert shown in (ROOT / "pytest_flashinfer_perf" / "routines" / "gemm" / "bmm_bf16.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_programs_of_the_documents_import_is_there(page):
    for program in blocks(page, "python"):
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("pytest_flashinfer_perf"):
                module = ROOT / node.module.replace(".", "/")
                source = (module / "__init__.py" if module.is_dir() else module.with_suffix(".py")).read_text()
                assert all(name.name in source for name in node.names)


def tables(text):
    """The rows of a page's tables that have a time in a column."""
    return {line for line in text.splitlines() if re.match(r"\|.*\| [\d.]+ (us|ms|s)( \(fastest\))? \|", line)}


def test_the_numbers_of_the_readme_are_those_of_recorded_runs():
    recorded = markdown.lines(runs.read([EVIDENCE / "h200-run.json"]))
    known = {
        *"\n".join(recorded).replace("\\_", "_").splitlines(),
        *(EVIDENCE / "gate-h200.md").read_text().splitlines(),
    }
    shown = tables((ROOT / "README.md").read_text())
    assert len(shown) == 8
    assert shown <= known


def test_the_sentences_of_the_readme_are_those_that_are_said(hopper):
    wrong, skips = blocks(ROOT / "README.md", "text")
    explained = (ROOT / "docs" / "checking.md").read_text()
    assert all(line in explained for line in wrong.splitlines() if line.strip() != "[...]")
    capability.flashinfer_import_error()  # imports it: what it warns of then would be an error here
    [fp8] = case.read(flags.split(DECODE_FP8), routines.all_routines())
    said = list(fp8.backend.limits(fp8.params, fp8.backend_name, hopper))
    needed = capability.compute_capability("trtllm-gen", *capability.HARDWARE["trtllm-gen"])(hopper)
    assert skips.splitlines() == [needed, *said]


DECODE_FP8 = (
    "--routine BatchDecodeWithPagedKVCacheWrapper --backends cudnn --page_size 16 --batch_size 1 --s_kv 1024 "
    "--num_qo_heads 8 --num_kv_heads 1 --head_dim_qk 128 --head_dim_vo 128 --q_dtype fp8_e4m3 --kv_dtype fp8_e4m3"
)


def commands_of(page):
    """The lines of a page's shell blocks as words, with what a line's end continues."""
    shown = re.findall(r"^\$ (.*)", "".join(blocks(page, "console")), re.MULTILINE)
    text = "\n".join([*(block for language in ("sh", "bash") for block in blocks(page, language)), *shown])
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


PYTEST = {"collect-only", "import-mode", "hypothesis-profile"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_the_documents_are_known(page, pytestconfig):
    for words in commands_of(page):
        verify(words, pytestconfig)


def test_what_the_documents_select_of_the_suite_is_there(pytester):
    """By one collection of all; -k looks at more than ids, which is more than these words need."""
    of_suite = [
        words for page in PAGES for words in commands_of(page) if "bench" in words or "tests/attention" in words
    ]
    selections = {words[words.index("-k") + 1].lower() for words in of_suite if "-k" in words}
    assert len(selections) > 3
    outcome = pytester.runpytest(
        *cli.of_suite(["--collect-only", "-q", "-k", " or ".join(map("({})".format, selections))])
    )
    ids = [line.lower() for line in outcome.outlines if "::" in line]
    for selection in selections:
        ways = [way.split(" and ") for way in selection.split(" or ")]
        assert any(all(word in one for word in way) for way in ways for one in ids), selection


def verify(words, config):
    while words and re.match(r"[A-Za-z_]+=", words[0]):
        words = words[1:]
    if not words:
        return
    program, rest = words[0].removeprefix(".venv/bin/"), words[1:]
    if program in ("ncu", "nsys", "srun"):
        verify(rest[rest.index("pytest") :], config)
    elif program == "python" and rest[:2] == ["-m", "pytest"]:
        verify(rest[1:], config)
    elif program == "pytest":
        options_of_pytest(rest, config)
    elif program == "flashinfer-perf":
        subcommand(rest, config)
    elif program == "make":
        assert f"\n{rest[0]}:" in (ROOT / "Makefile").read_text(), words
    elif program == "pip":
        extras(rest)
    else:
        assert program in (".ci/run", "python"), words


def options_of_pytest(words, config):
    for word in words:
        name = word.partition("=")[0].removeprefix("--")
        if word.startswith("--") and name not in PYTEST:
            assert hasattr(config.option, name.replace("-", "_")), word
        if word.startswith("tests/"):
            assert (ROOT / word).exists(), word


def subcommand(words, config):
    name, (*own, _), pytests = words[0], [*words[1:], "--"], []
    if name == "bench":
        return options_of_pytest(own, config)
    assert name in cli.COMMANDS, words
    if "--" in own:
        at = own.index("--")
        own, pytests = own[:at], own[at + 1 :]
    if name != "run":  # which takes flags of upstream's
        explained = help_of(name)
        assert all(word.partition("=")[0] in explained for word in own if word.startswith("--")), words
    return options_of_pytest(pytests, config)


def extras(words):
    declared = (ROOT / "pyproject.toml").read_text()
    for extra in re.findall(r"\[(\w+)\]", " ".join(words)):
        assert f"\n{extra} = [" in declared, words


def help_of(*words):
    told = io.StringIO()
    with contextlib.redirect_stdout(told), pytest.raises(SystemExit) as ended:
        cli.main([*words, "--help"])
    assert ended.value.code == 0
    return told.getvalue()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_a_subcommand_has_an_example_that_it_takes(name, pytestconfig):
    told = help_of(name)
    assert name in help_of()
    examples = re.split(r"^examples?:", told, flags=re.MULTILINE)[1]
    lines = [" ".join(text.split()) for text in re.split(r"(?=flashinfer-perf )", examples) if text.strip()]
    assert lines
    for line in lines:
        words = shlex.split(line.partition(">")[0])
        assert words[:2] == ["flashinfer-perf", name]
        verify(words, pytestconfig)


def test_the_filters_of_profilers_are_the_cases_id():
    known = routines.all_routines()
    for words in commands_of(ROOT / "docs" / "profile.md")[:2]:
        [line] = [word.partition("=")[2] for word in words if word.startswith("--perf-case=")]
        [one] = case.read(flags.split(line), known)
        assert f"{one.id}/" in words or f"--nvtx-capture={one.id}" in words


def test_messages_of_the_page_of_trouble_are_those_of_the_code():
    sources = [*(ROOT / "pytest_flashinfer_perf").rglob("*.py"), ROOT / "Makefile"]
    code = "\n".join(path.read_text() for path in sources).replace("\\n", " ")
    said = re.findall(r"^\| (`.*?) \| ", (ROOT / "docs" / "trouble.md").read_text(), re.MULTILINE)
    messages = [message for cell in said for message in re.findall(r"`([^`]+)`", cell)]
    assert len(messages) > 30
    for message in messages:
        for part in filter(None, (part.strip(" ,?") for part in message.split("..."))):
            assert part in code.replace("{{", "{").replace("}}", "}"), message


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
