"""What a command writes is none of the files that it reads, by whatever name."""

import json
import os

import pytest
from declared import here
from made import row, saved

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.files import FileError, verify_outputs

TEST = """
from pathlib import Path
import torch

def test_own(perf):
    Path("measured").touch()
    perf.time(torch.neg, torch.ones(8))
"""
COMMANDS = here(
    {
        "report a.json -o a.json": "--output: a.json is read",
        "report a.json -o linked.json": "--output: linked.json is read",
        "report a.json -o hard.json": "--output: hard.json is read",
        "report --markdown a.json b.json -o runs/../b.json": "--output: runs/../b.json is read",
        "merge a.json b.json -o a.json": "--output: a.json is read",
        "compare --base a.json --head b.json --json a.json": "--json: a.json is read",
        "compare --base a.json --head b.json --markdown b.json": "--markdown: b.json is read",
        "compare --base runs --head b.json --json runs/c.json": "--json: runs/c.json is read",
        "compare --base main --storage runs --head b.json --json runs/0001_main.json": "--json: runs/0001_main.json is",
        "compare --base a.json --head b.json --perf-config=own.toml --json own.toml": "--json: own.toml is read",
        "compare --base a.json --head b.json --json x --markdown x": "--json: x is written by --markdown too",
        "compare --base a.json --head b.json --json folder": "--json: [Errno 21] Is a directory: 'folder'",
        "report a.json -o /proc/r.html": "--output: [Errno 2] No such file or directory: '/proc/r.html'",
    }
)
OPTIONS = here(
    {
        "--perf-gate=a.json --benchmark-json=a.json": "--benchmark-json: *a.json is read",
        "--perf-gate=runs --benchmark-json=runs/c.json": "--benchmark-json: *c.json is read",
        "--perf-config=own.toml --perf-html=own.toml": "--perf-html: *own.toml is read",
        "--perf-csv=test_own.py": "--perf-csv: *test_own.py is read",
        "--benchmark-json=test_other.py": "--benchmark-json: *test_other.py is read",
        "--perf-csv=pytest.ini": "--perf-csv: *pytest.ini is read",
        "--perf-csv=r --perf-html=r": "--perf-*: *r is written by --perf-* too",
        "--perf-csv=r --benchmark-json=r": "--perf-csv: *r is written by --benchmark-json too",
        "--perf-html=r --junitxml=r": "--perf-html: *r is written by --junitxml too",
    }
)


def make(folder):
    for name in ("a.json", "b.json", "runs/c.json", "runs/0001_main.json"):
        saved(folder / name, row(us=len(name)))
    (folder / "linked.json").symlink_to("a.json")
    os.link(folder / "a.json", folder / "hard.json")
    (folder / "own.toml").write_text("")
    (folder / "config.json").write_text("{}")
    (folder / "folder").mkdir()
    return contents(folder)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make(tmp_path)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_refuses_to_write_what_it_reads(files, tmp_path, capsys, line):
    assert cli.main(line.split()) == 2
    said = capsys.readouterr().err
    assert f"flashinfer-perf {line.split()[0]}: {COMMANDS[line]}" in said
    assert said.count("\n") == 1
    assert contents(tmp_path) == files


@pytest.mark.parametrize("line", OPTIONS)
def test_a_session_refuses_to_write_what_it_reads(pytester, line):
    pytester.makepyfile(test_own=TEST, test_other=TEST)
    (pytester.path / "pytest.ini").write_text("[pytest]\n")
    before = make(pytester.path) | contents(pytester.path)
    done = pytester.runpytest("-p", "no:cacheprovider", "--perf-device=cpu", "test_own.py", *line.split())
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {OPTIONS[line]}*: write to another file"])
    assert contents(pytester.path) == before


@pytest.mark.usefixtures("files")
def test_a_name_that_is_no_file_is_read_by_nobody(tmp_path):
    verify_outputs({"--output": tmp_path / "new"}, [tmp_path / "new"])
    with pytest.raises(FileError):
        verify_outputs({"--output": tmp_path / "a.json"}, [tmp_path / "linked.json"])


def test_the_baseline_of_a_gate_is_what_it_was(session, pytester):
    """Refused or not: a run that is slower does not become what the next one is compared with."""
    base = session(test_own=TEST).document
    pytester.path.joinpath("base.json").write_text(json.dumps(base))
    pytester.runpytest("--perf-device=cpu", "--perf-gate=base.json", "--benchmark-json=base.json")
    assert json.loads((pytester.path / "base.json").read_text()) == base
