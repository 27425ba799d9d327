"""Documents lead somewhere: their links, files, commands, options, settings and names are there."""

import ast
import importlib
import inspect
import re
import shlex
import subprocess
from dataclasses import fields
from importlib import metadata

import pytest
from documents import DOCS, OF_EXAMPLES, PAGES, README, RECORDS, ROOT, blocks, commands_of, each, help_of, verify

import pytest_flashinfer_perf as package
from pytest_flashinfer_perf import Measuring, cli, loading
from pytest_flashinfer_perf.cli.commands import all_commands
from pytest_flashinfer_perf.extensions.shards import shards
from pytest_flashinfer_perf.plugin.fixture import Perf
from pytest_flashinfer_perf.plugin.options import MARKERS
from pytest_flashinfer_perf.session import processes

PACKAGE = ROOT / "pytest_flashinfer_perf"


def links_of(page):
    links = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    return [(target, section) for target, _, section in links if not target.startswith("https://")]


def sections(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def files_named_in(page):
    """Those with a folder before their name, from the repository's root or the package's."""
    return re.findall(r"`(\w+/[\w./-]+\.(?:py|md|txt|toml|yml))`", page.read_text())


def options_in(page):
    return set(re.findall(r"--perf-[a-z0-9-]+", page.read_text()))


@pytest.mark.parametrize("page", each(links_of, [*PAGES, *RECORDS]))
def test_links_lead_somewhere(page):
    for target, section in links_of(page):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not section or section in sections(there), f"{target}#{section}"


@pytest.mark.parametrize("page", each(files_named_in))
def test_files_that_the_documents_name_are_there(page):
    for name in files_named_in(page):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), name


@pytest.mark.parametrize("page", each(options_in))
def test_options_of_the_documents_exist(page, pytestconfig):
    for option in options_in(page) - {f"--{name}" for name in OF_EXAMPLES}:
        assert hasattr(pytestconfig.option, option.removeprefix("--").replace("-", "_")), option


@pytest.mark.parametrize("page", each(commands_of))
def test_commands_of_the_documents_are_known(page, pytestconfig):
    for words in commands_of(page):
        verify(words, pytestconfig)


def test_every_page_and_every_record_can_be_reached_from_the_readme():
    reached, waiting = set(), [README]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        targets = {(page.parent / target).resolve() for target, _ in links_of(page) if target.endswith(".md")}
        waiting.extend(targets - reached - {*waiting})
    assert {*PAGES, *RECORDS} - reached == set()


@pytest.mark.parametrize("name", [*cli.OF_PYTEST, *all_commands()])
def test_help_of_a_subcommand_has_an_example_that_it_takes(name, pytestconfig):
    examples = re.split(r"^examples?:", help_of(name), flags=re.MULTILINE)[1]
    lines = [" ".join(text.split()) for text in re.split(r"(?=flashinfer-perf )", examples) if text.strip()]
    assert lines
    for line in lines:
        words = shlex.split(line.partition(">")[0])
        assert words[:2] == ["flashinfer-perf", name]
        verify(words, pytestconfig)


def test_the_gates_commands_are_parsed():
    """With their values, which `--help` cannot tell from wrong ones."""
    words = commands_of(DOCS / "gate.md")
    commands = [rest for program, *rest in words if program == "flashinfer-perf"]
    assert len(commands) > 2
    for name, *arguments in commands:
        module, _, function = all_commands()[name].main.partition(":")
        own, _ = processes.split(arguments)
        parser = "parser" if function == "main" else f"{function}_parser"
        getattr(importlib.import_module(module), parser)().parse_args(own)


def test_every_scheduler_of_the_documents_passes_its_own_index():
    """The commands as a shell sees them, with the index that each scheduler sets."""
    text = (DOCS / "many.md").read_text().replace("${{ matrix.shard }}", "4")
    indices = {"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_COUNT": "8", "JOB_COMPLETION_INDEX": "7"}
    written = re.findall(r"--perf-shard=((?:\$\(\(.*?\)\)|[^\s`])+)", text)
    command = ["bash", "-c", f"printf '%s\\n' {' '.join(one for one in written if one != 'i/n')}"]
    shell = subprocess.run(command, env=indices, capture_output=True, text=True, check=True)
    assert [shards.parse(one) for one in shell.stdout.split()] == [(2, 8), (4, 4), (8, 8), (8, 8)]


@pytest.mark.parametrize(("page", "program"), [("support-matrix", "support_matrix"), ("options", "options_page")])
def test_a_generated_page_is_what_its_program_writes(page, program):
    text, installed = (DOCS / f"{page}.md").read_text(), metadata.version("flashinfer-python")
    if page == "support-matrix" and f"with FlashInfer {installed} installed" not in text:
        pytest.skip(f"the matrix is of another FlashInfer than {installed}, which declares other backends")
    now = "\n".join(importlib.import_module(program).lines()).rstrip()
    assert f"{now}\n" == text, f"out of date: python tools/{program}.py > docs/{page}.md"


@pytest.fixture(scope="module")
def api():
    """What docs/api.md declares, by its name, as the syntax trees of the declarations."""
    declared = [node for block in blocks(DOCS / "api.md", "python") for node in ast.parse(block).body]
    return {node.name: node for node in declared}


def test_the_api_page_has_every_public_name_and_field(api):
    text = (DOCS / "api.md").read_text()
    assert sorted(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == sorted(package.__all__)
    assert {*api} == {*package.__all__, "Perf"} - {"Measurement"}
    [markers] = re.findall(r"^## Markers\n\n(.*?):", text, re.MULTILINE | re.DOTALL)
    assert {*re.findall(r"`(\w+)`", markers)} == {
        re.match(r"\w+", marker)[0] for marker in (*MARKERS, *loading.markers(loading.manager()))
    }
    written = {node.targets[0].id: ast.literal_eval(node.value) for node in api["Measuring"].body}
    assert written == {f.name: f.default for f in fields(Measuring)}


def test_the_api_page_has_the_parameters_and_defaults_of_functions(api):
    methods = {node.name: node for node in api["Perf"].body}
    declared = [(node, getattr(Perf, name)) for name, node in methods.items()]
    declared += [(api[name], getattr(package, name)) for name in ("measure", "check_answer", "strategies_for")]
    for node, function in declared:
        assert signature(stated(node)) == signature(function), node.name


def signature(function):
    return [(p.name, p.kind.name, p.default) for p in inspect.signature(function).parameters.values()]


def stated(node):
    """The function that a declaration of the page makes, without its types."""
    made, plain = {}, ast.FunctionDef(node.name, node.args, node.body, [], None, None)
    exec(compile(ast.fix_missing_locations(ast.Module([plain], [])), "api.md", "exec"), made)
    return made[node.name]
