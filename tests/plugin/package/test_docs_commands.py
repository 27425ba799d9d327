"""Commands, options and settings of the documents are those that there are."""

import importlib
import re
import shlex
import subprocess

import hypothesis
import pytest
from documents import DOCS, PAGES, QUICK, ROOT, blocks, commands_of, each, help_of, verify_command

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.cli.commands import SHARED
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.session import shards
from pytest_flashinfer_perf.spec import case, flags


def options_in(page):
    return set(re.findall(r"--perf-[a-z0-9-]+", page.read_text()))


@pytest.mark.parametrize("page", each(options_in))
def test_options_of_the_documents_exist(page, pytestconfig):
    for option in options_in(page):
        assert hasattr(pytestconfig.option, option.removeprefix("--").replace("-", "_")), option


@pytest.mark.parametrize("page", each(commands_of))
def test_commands_of_the_documents_are_known(page, pytestconfig):
    for words in commands_of(page):
        verify_command(words, pytestconfig)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_a_subcommand_has_an_example_that_it_takes(name, pytestconfig):
    explained = help_of(name)
    assert name in help_of()
    examples = re.split(r"^examples?:", explained, flags=re.MULTILINE)[1]
    lines = [" ".join(text.split()) for text in re.split(r"(?=flashinfer-perf )", examples) if text.strip()]
    assert lines
    for line in lines:
        words = shlex.split(line.partition(">")[0])
        assert words[:2] == ["flashinfer-perf", name]
        verify_command(words, pytestconfig)


def test_the_gates_commands_are_parsed():
    """With their values, which `--help` cannot tell from wrong ones."""
    commands = [words[1:] for words in commands_of(DOCS / "gate.md") if words[0] == "flashinfer-perf"]
    assert len(commands) > 5
    for name, *arguments in commands:
        module = importlib.import_module(f"pytest_flashinfer_perf.cli.commands.{SHARED.get(name, name)}")
        own, _ = processes.split(arguments)
        getattr(module, f"{name}_parser" if name in SHARED else "parser")().parse_args(own)


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


def test_the_search_of_the_document_collects(pytester):
    [block] = blocks(DOCS / "fuzzing.md", "bash")
    command = block.split()[1:]
    result = pytester.runpytest(str(ROOT / "tests" / "gemm"), *command, "--collect-only", "-q", *QUICK)
    result.stdout.fnmatch_lines(["*test_bmm_fp8[[]fuzz-cublas]*"])


def test_the_nightly_job_names_options_and_profiles_that_there_are():
    [job] = blocks(DOCS / "fuzzing.md", "yaml")
    [profile] = re.findall(r"--hypothesis-profile=(\S+)", job)
    assert hypothesis.settings.get_profile(profile).max_examples == 5000


def test_the_filters_of_profilers_are_the_cases_id():
    known = all_routines()
    for words in commands_of(DOCS / "profile.md")[:2]:
        [line] = [word.partition("=")[2] for word in words if word.startswith("--perf-case=")]
        [one] = case.parse(flags.split(line), known).cases()
        assert f"{one.id}/" in words or f"--nvtx-capture={one.id}" in words


def test_every_scheduler_of_the_documents_passes_its_own_index():
    """The commands as a shell sees them, with the index that each scheduler sets."""
    text = (DOCS / "many.md").read_text().replace("${{ matrix.shard }}", "4")
    indices = {"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_COUNT": "8", "JOB_COMPLETION_INDEX": "7"}
    written = re.findall(r"--perf-shard=((?:\$\(\(.*?\)\)|[^\s`])+)", text)
    shell = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {' '.join(one for one in written if one != 'i/n')}"],
        env=indices,
        capture_output=True,
        text=True,
        check=True,
    )
    assert [shards.parse(one) for one in shell.stdout.split()] == [(2, 8), (4, 4), (8, 8), (8, 8)]
