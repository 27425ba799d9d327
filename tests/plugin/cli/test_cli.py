import argparse
import re
import shlex
import subprocess
import sys
import zipfile
from importlib import metadata

import pytest
from declared import OPTIONS, here
from documents import ROOT

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.cli.commands import all_commands
from pytest_flashinfer_perf.plugin import cases as suite
from pytest_flashinfer_perf.settings.option import GROUPS

COMMANDS = (*cli.OF_PYTEST, *all_commands())
SELECT = ("--perf-suite=smoke", "--collect-only", "-q", "-k", "torch")


def test_the_wheel_carries_the_suite_and_runs_it_without_a_checkout(tmp_path, pytester, pytestconfig, monkeypatch):
    """The same ids as a checkout, from an unpacked wheel, in a folder of somebody else."""
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=pytestconfig.rootpath, check=True, capture_output=True)
    unpacked, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(unpacked)
    program = f"import sys; sys.path.insert(0, {str(unpacked)!r}); from pytest_flashinfer_perf import cli; "
    program += "from pytest_flashinfer_perf.plugin import cases; "
    program += f"print(cases.root()); sys.exit(cli.main(['bench', *{SELECT!r}]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    root, *lines = done.stdout.splitlines()
    data = {*(ROOT / "pytest_flashinfer_perf").rglob("*.schema.json")}
    assert {*unpacked.rglob("*.schema.json")} == {unpacked / path.relative_to(ROOT) for path in data}
    assert root == str(unpacked / "pytest_flashinfer_perf" / "suite")
    assert "PytestAssertRewriteWarning" not in done.stdout
    monkeypatch.chdir(pytestconfig.rootpath)
    ids = [line for line in lines if "::" in line]
    assert len(ids) > 40
    assert ids == [line for line in pytester.runpytest(*SELECT).outlines if "::" in line]


def test_bench_goes_without_pytests_cache_where_that_is_asked_for():
    assert any("cache_dir" in word for word in cli.of_suite([]))
    assert not any("cache_dir" in word for word in cli.of_suite(["-p", "no:cacheprovider"]))


class Asking:
    def pytest_perf_paths(self):
        return ["elsewhere", "elsewhere"]


def test_bench_runs_the_tests_that_an_extension_is_asked_for_instead_of_the_suite(pytester):
    config = pytester.parseconfigure(*cli.of_suite(["own"]))
    assert config.args == [*map(str, suite.paths()), "own"]
    config.pluginmanager.register(cli.SelectedTests(), "before")
    assert config.args == [*map(str, suite.paths()), "own"]
    config.pluginmanager.register(Asking())
    config.pluginmanager.register(cli.SelectedTests())
    assert config.args == ["elsewhere", "own"]


def test_bench_in_a_checkout_uses_its_tests():
    assert [path.name for path in suite.paths()][:3] == ["attention", "gemm", "moe"]
    assert suite.root() / "tests" / "attention" in suite.paths()


def help_of(capsys, *words):
    with pytest.raises(SystemExit) as done:
        cli.main([*words, "-h"])
    assert done.value.code == 0
    return capsys.readouterr().out


def test_help_has_the_commands(capsys):
    """In groups, the daily ones first."""
    groups = re.findall(r"^(\w[\w ]*):\n((?: +.*\n)+)", help_of(capsys), re.MULTILINE)
    named = {name: re.findall(r"^  (\S+)", listed, re.MULTILINE) for name, listed in groups if name in GROUPS}
    assert sorted(name for of_one in named.values() for name in of_one) == sorted(COMMANDS)
    assert list(named) == [group for group in GROUPS if group in named]
    assert named["measure"][0] == "bench"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_fits_into_the_terminal(command, capsys, monkeypatch):
    """But for the example, which is a command on one line."""
    monkeypatch.setenv("COLUMNS", "80")
    told, examples = re.split(r"^examples?:", help_of(capsys, command), flags=re.MULTILINE)
    assert [line for line in told.splitlines() if len(line) > 80] == []
    assert shlex.split(examples)[:2] == ["flashinfer-perf", command]


def test_pytests_help_has_the_daily_options_and_says_where_the_others_are(session, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    told = re.findall(r"^FlashInfer.*\n(?:.+\n)+", session("--help").out, re.MULTILINE)
    assert 20 < "\n".join(told).count("\n") <= 60
    shown = set(re.findall(r"^  (--perf-[\w-]+)", "".join(told), re.MULTILINE))
    assert shown == {name for name, option in OPTIONS.items() if option.daily}
    assert all("flashinfer-perf options" in of_one.splitlines()[0] for of_one in told)


def test_options_lists_all_of_them_or_those_with_a_word(capsys):
    def listed(*word):
        assert cli.main(["options", *word]) == 0
        return set(re.findall(r"^  (--perf-[\w-]+)", capsys.readouterr().out, re.MULTILINE))

    assert listed() == {name for name, one in OPTIONS.items() if one.keywords["help"] != argparse.SUPPRESS}
    assert {"--perf-gate", "--perf-save-baseline"} <= listed("baseline") < listed()
    assert cli.main(["options", "watermelon"]) == 2
    assert "no option has 'watermelon'" in capsys.readouterr().err


def test_the_version_is_the_installed_one(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["--version"])
    assert done.value.code == 0
    assert capsys.readouterr().out == f"pytest-flashinfer-perf {metadata.version('pytest-flashinfer-perf')}\n"


INTERRUPTED = """
import os, runpy, signal, sys

class AtTheImport:
    def find_spec(self, name, *_):
        if name == "pytest_flashinfer_perf.cli":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
sys.meta_path.insert(0, AtTheImport())
runpy.run_module("pytest_flashinfer_perf", run_name="__main__")
"""


def test_ctrl_c_while_the_command_is_imported_is_a_sentence_as_well():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "flashinfer-perf: interrupted\n")


def test_an_unknown_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["fly"])
    assert done.value.code == 2
    assert "invalid choice: 'fly'" in capsys.readouterr().err


GEMM = "--routine bmm_fp8 --batch_size 1 --m 4 --n 16 --k 16 --backends"
SKIPPED = f"{GEMM} cudnn cublas"
BENCH = ["bench", f"--perf-case={SKIPPED}", "--perf-device=cpu"]
ALL_SKIPPED = here(
    {
        f"run {SKIPPED} -- --perf-device=cpu": ["run", *SKIPPED.split(), "--", "--perf-device=cpu"],
        "bench --perf-case": BENCH,
    }
)


@pytest.mark.parametrize("command", ALL_SKIPPED)
def test_a_command_that_measured_nothing_says_so_and_does_not_end_well(pytester, capsys, command):
    pytester.chdir()
    assert cli.main(ALL_SKIPPED[command]) == pytest.ExitCode.NO_TESTS_COLLECTED
    shown = capsys.readouterr().out.splitlines()
    assert "    2  needs an NVIDIA GPU, this run is on the CPU (cudnn, cublas)" in shown
    assert "nothing was measured, for the reasons above" in shown


def test_plain_pytest_says_so_and_ends_as_pytest_does(pytester, capsys):
    pytester.chdir()
    plain = pytester.runpytest(*cli.of_suite(BENCH[1:]))
    assert plain.ret == pytest.ExitCode.OK
    plain.stdout.fnmatch_lines(["nothing was measured, for the reasons above"])
    assert cli.main([*BENCH, "--collect-only"]) == pytest.ExitCode.OK
    some = ["bench", f"--perf-case={GEMM} torch cudnn -n 3", "--perf-device=cpu"]
    assert cli.main(some) == pytest.ExitCode.OK
    assert "nothing was measured" not in capsys.readouterr().out.rpartition("test session starts")[2]
