"""The extension of docs/extend.md, as somebody has it who installs it: with ours, and with the core alone."""

import contextlib
import importlib
import os
import re
import shutil
import sys

import one_session
import pytest
from documents import DOCS, EXAMPLES, blocks

from pytest_flashinfer_perf import api, cli, hookspecs, loading
from pytest_flashinfer_perf.cli import commands
from pytest_flashinfer_perf.rows import parts
from pytest_flashinfer_perf.settings import project_file

EXAMPLE = EXAMPLES / "extension"
MODULE = EXAMPLE / "flashinfer_perf_energy.py"
PAGE = DOCS / "extend.md"
LINES = "".join(f"--routine mm_bf16 --m {m} --n 16 --k 32 --backends torch\n" for m in (4, 8))
RULES = '[thresholds]\n"*" = { slower_energy = "10%" }\n'


@pytest.fixture(params=["with ours", "alone"])
def installed(request, pytester, monkeypatch):
    """It, where Python and a session of this process find what is installed: by its entry point."""
    project = project_file.tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    site = pytester.mkdir("site")
    about = site / f"flashinfer_perf_energy-{project['version']}.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    [(group, named)] = project["entry-points"].items()
    about.joinpath("entry_points.txt").write_text(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()))
    site.joinpath(MODULE.name).write_text(MODULE.read_text())
    monkeypatch.syspath_prepend(site)
    importlib.import_module(MODULE.stem)  # which stays, whatever session ends
    if request.param == "alone":
        monkeypatch.setattr(loading, "FOLDER", "pytest_flashinfer_perf.no_extensions")
    pytester.path.joinpath("products.shapes").write_text(LINES)
    pytester.path.joinpath("flashinfer-perf.toml").write_text(RULES)
    with forgotten():
        yield


@contextlib.contextmanager
def forgotten():
    """Extensions are found anew within, and after it."""
    before = dict(parts.DECLARED)
    for known in (loading.manager, commands.all_commands):
        known.cache_clear()
    parts.DECLARED.clear()
    yield
    for known in (loading.manager, commands.all_commands):
        known.cache_clear()
    parts.DECLARED.clear()
    parts.DECLARED.update(before)


@pytest.fixture
def written(installed, session):  # noqa: ARG001
    """The file of a session of products.shapes at such a power, by its name."""

    def write(name, *options):
        done = session("products.shapes", *options)
        assert done.outcomes == {"passed": 2}
        return done, (done.folder / "run.json").rename(done.folder / name)

    return write


def test_each_line_of_its_file_is_a_case_whose_energy_is_in_the_row_and_below_the_table(written):
    done, path = written("run.json", "--perf-watts=700")
    done.says("energy: 1.4 J for a call of each case, most of it mm_bf16/m*-n16-k32-torch")
    told = [row.parts["energy"] for row in api.run_file.read(path).rows]
    assert [(one.watts, one.joules) for one in told] == [(700, pytest.approx(0.7))] * 2


def test_without_its_option_the_field_is_null_and_nothing_is_told(written):
    done, path = written("run.json")
    assert [row["extra_info"]["energy"] for row in done.rows.values()] == [None, None]
    assert [row.part("energy", object) for row in api.run_file.read(path).rows] == [None, None]
    assert "energy" not in done.out


def test_help_has_its_option_and_a_wrong_value_is_a_sentence(installed, session):  # noqa: ARG001
    session("--help").says("*--perf-watts=W *")
    wrong = session("products.shapes", "--perf-watts=-1")
    assert wrong.code == pytest.ExitCode.USAGE_ERROR
    wrong.complains("*--perf-watts*a number of watts above 0*")


@pytest.mark.parametrize(("watts", "slower"), [(900, True), (720, False)])
def test_the_gate_judges_the_energy(written, watts, slower):
    _, before = written("before.json", "--perf-watts=700")
    _, after = written("after.json", f"--perf-watts={watts}")
    rules = api.verdict.read_rules(project_file.find(before.parent), loading.manager().hook)
    judgement = api.judge([api.run_file.read(before)], [api.run_file.read(after)], rules)
    told = {one.reason for one in judgement.cases} == {"slower-energy"}
    assert (told, judgement.exit_code == 1) == (slower, slower)


def test_its_command_reads_a_run(written, capsys):
    _, path = written("run.json", "--perf-watts=700")
    capsys.readouterr()
    assert cli.main(["energy", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"0.7 J mm_bf16/m{m}-n16-k32-torch" for m in (4, 8)]
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "Show what the calls of a run cost in energy." in capsys.readouterr().out


@pytest.mark.more
def test_pip_installs_it_and_pytest_finds_it(pytester, monkeypatch):
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--target", "site")
    copied = shutil.copytree(EXAMPLE, pytester.path / "extension")
    assert pytester.run(sys.executable, "-m", "pip", "install", *options, copied).ret == 0
    monkeypatch.setenv("PYTHONPATH", str(pytester.path / "site"), prepend=os.pathsep)
    pytester.path.joinpath("products.shapes").write_text(LINES)
    asked = ("products.shapes", "--perf-watts=700", "--benchmark-json=run.json")
    pytester.runpytest_subprocess(*one_session.QUICK, *asked).assert_outcomes(passed=2)
    told = pytester.run(sys.executable, "-m", "pytest_flashinfer_perf", "energy", "run.json")
    assert (told.ret, len(told.outlines)) == (0, 2)


# The page.


def test_the_page_has_each_hook_and_each_name_of_the_api():
    text = PAGE.read_text()
    hooks = [name for name in vars(hookspecs) if name.startswith("pytest_perf_")]
    named = re.findall(r"`(\w+)`", text)
    assert {*hooks, *api.__all__} - {*named} == set()


def test_what_the_page_shows_of_the_example_is_in_it():
    shown = [line for block in blocks(PAGE, "python") for line in block.splitlines() if line.strip(" .")]
    assert shown
    assert [line for line in shown if line not in MODULE.read_text()] == []
