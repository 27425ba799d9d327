"""The base distribution: runs are compared where torch is not installed, and a case says in a sentence what it needs.

The wheel is installed in a virtual environment that has what its metadata require, and nothing else.
"""

import json
import os
import statistics
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
RUN = ROOT / "evidence" / "h200-run.json"
MOST_CPU_S = 0.06  # of an unrelated run of pytest


def needed(distribution):
    """The installed distributions that one requires, and those that they require, without extras."""
    found = {}
    for asked in map(Requirement, distribution.requires or ()):
        if asked.marker is None or asked.marker.evaluate({"extra": ""}):
            there = metadata.distribution(asked.name)
            found |= {asked.name: there, **needed(there)}
    return found


@pytest.fixture(scope="module")
def light(tmp_path_factory):
    """The folder of the commands of such an environment."""
    pytest.importorskip("hatchling")
    work = tmp_path_factory.mktemp("light")
    venv.create(work / "env", symlinks=True)
    [site] = (work / "env").glob("lib/python*/site-packages")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", work]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = work.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", work / "env" / "bin" / "python", "install", "--no-deps"]
    subprocess.run([*install, "--no-index", "--quiet", wheel], check=True, capture_output=True)
    [ours] = map(metadata.Distribution.at, site.glob("pytest_flashinfer_perf-*.dist-info"))
    for one in needed(ours).values():
        for top in {file.parts[0] for file in one.files if file.parts[0] not in ("..", "__pycache__")}:
            (site / top).symlink_to(one.locate_file(top))
    return work / "env" / "bin"


@pytest.fixture
def run(light, tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}

    def start(command, *arguments, tests=""):
        (tmp_path / "test_it.py").write_text(tests)
        words = ["-m", *command.split(), *map(str, arguments)]
        return subprocess.run(
            [light / "python", *words], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )

    return start


COMMAND = "pytest_flashinfer_perf"
FILES = {
    "compare": (("--base", RUN, "--head", RUN), 0, "no slowdown was found"),
    "history": ((RUN.parent,), 2, "series from 1 run"),
    "merge": ((RUN, "--allow", "gaps", "--output", "merged.json"), 0, ""),
    "report": (("--markdown", RUN), 0, "NVIDIA H200"),
    "export": ((RUN, "--to", "csv"), 0, "NVIDIA H200"),
}


@pytest.mark.parametrize("command", FILES)
def test_files_of_runs_are_used_where_torch_is_not_installed(run, command):
    arguments, code, said = FILES[command]
    done = run(COMMAND, command, *arguments)
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout[-2000:] + done.stderr


def test_nights_are_published_and_made_into_a_site_where_torch_is_not_installed(run, tmp_path):
    for words in (["init", "-q", "--bare", "there.git"], ["init", "-q"], ["remote", "add", "origin", "there.git"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    too_few = 2
    for words, code in ((["publish", RUN], 0), (["watch", "perf-data", "-o", "site"], too_few)):
        done = run(COMMAND, *words)
        assert done.returncode == code, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").is_file()


@pytest.mark.parametrize("command", ["list", "doctor", "prebuild", "tune-report", "bench", "run --routine mm_bf16"])
def test_what_measures_says_in_a_sentence_what_to_install(run, command):
    done = run(f"{COMMAND} {command}")
    assert done.returncode in (2, pytest.ExitCode.USAGE_ERROR)
    [line] = (done.stdout + done.stderr).strip().splitlines()
    assert line.endswith("needs torch, which is not installed: pip install torch, or this package with its extra bench")


CASES = """
import pytest

@pytest.mark.perf_cases("mm_bf16")
def test_case(perf, case): perf(case)

def test_own(perf): perf.time(len, [1])

def test_plain(): pass
"""
LIBRARY = {("-k", "case"): "torch", ("-k", "own"): "torch", ("-k", "case", "--perf-fuzz"): "hypothesis"}


@pytest.mark.parametrize("options", LIBRARY, ids=" ".join)
def test_a_case_says_in_a_sentence_what_to_install(run, options):
    done = run("pytest", *options, tests=CASES)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    [line] = [line for line in done.stderr.splitlines() if line]
    assert line.startswith(f"ERROR: this needs {LIBRARY[options]}, which is not installed: pip install ")


@pytest.mark.parametrize("options", [("-k", "plain"), ("--collect-only",), ("-k", "plain", "--perf-device=cpu")])
def test_tests_beside_a_case_run_where_torch_is_not_installed(run, options):
    done = run("pytest", *options, tests=CASES)
    assert (done.returncode, done.stderr) == (0, "")


UNRELATED = """
import json, resource, subprocess, sys

def seconds(*words):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "pytest", *words], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

def test_unrelated(): pass

if __name__ == "__main__":
    seconds(), seconds("-p", "no:flashinfer_perf")  # which compile what they import
    print(json.dumps([seconds() - seconds("-p", "no:flashinfer_perf") for _ in range(9)]))
"""


def test_an_unrelated_run_pays_little_for_this_plugin(run):
    done = run("test_it", tests=UNRELATED)
    assert statistics.median(json.loads(done.stdout)) < MOST_CPU_S, done.stdout
