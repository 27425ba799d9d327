"""Without torch, runs are compared, and what measures says in a sentence what to install.

What the extras bring is kept from being found; but for xdist, which is a plugin of pytest's own.
"""

import json
import os
import subprocess
import sys

import pytest
from declared import here
from documents import ROOT

RUN = str(ROOT / "evidence" / "h200-run.json")
HIDING = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
hidden = {"torch", "triton", "flashinfer", "filelock", "cuda", "cupti", "pynvml", "hypothesis", "pandas"}
hidden |= {"jinja2", "vl_convert", "flashinfer_bench", "pydantic", "yaml", "safetensors"}

def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else find(name, path, target)

PathFinder.find_spec = classmethod(find_spec)
"""


@pytest.fixture
def run(tmp_path):
    """Starts a Python without them."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HIDING)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
    env |= {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]), "PYTEST_ADDOPTS": "-p no:hypothesispytest"}

    def start(*words):
        command = [sys.executable, "-W", "ignore", *words]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return start


# Each command, the exit code, and what its output has or the last line of its errors ends with.
USED = here(
    {
        f"compare --base {RUN} --head {RUN}": (0, "no slowdown was found"),
        f"watch {ROOT / 'evidence'} -o seen": (2, "too few to tell a change"),
        f"merge {RUN} --output merged.json": (2, ""),
        f"report --markdown {RUN}": (0, "NVIDIA H200"),
    }
)
REFUSED = here(["list", "doctor", "prebuild", "tune-report", "run --routine mm_bf16", "bench"])
INSTALL = "needs torch, which is not installed: pip install torch, or this package with its extra bench"
MAIN = """
import contextlib, io, json, sys
from pytest_flashinfer_perf import cli

def called(words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        return int(cli.main(words)), out.getvalue(), err.getvalue()

print(json.dumps([called(words) for words in json.loads(sys.argv[1])]))
assert "torch" not in sys.modules
"""


def test_commands_use_files_or_say_what_to_install(run, tmp_path):
    done = run("-c", MAIN, json.dumps([line.split() for line in (*USED, *REFUSED)]))
    assert done.returncode == 0, done.stderr
    ended = json.loads(done.stdout)
    for line, (got, out, err) in zip(USED, ended, strict=False):
        code, said = USED[line]
        assert (got, said in out) == (code, True), (line, out, err)
    assert (tmp_path / "seen" / "index.html").is_file() or not here(["watch"])
    for line, (code, out, err) in zip(REFUSED, ended[len(USED) :], strict=True):
        assert code in (2, pytest.ExitCode.USAGE_ERROR), line
        [said] = (out + err).strip().splitlines()
        assert said.endswith(INSTALL), line


CASES = """
import pytest

@pytest.mark.perf_cases("mm_bf16")
def test_case(perf, case): perf(case)

def test_own(perf): perf.time(len, [1])

def test_plain(): pass
"""


SESSIONS = {
    "-k case": "torch",
    "-k own": "torch",
    "-k case --perf-fuzz": "hypothesis",
    "-k plain --perf-device=cpu": None,
    "--collect-only": None,
}


@pytest.mark.parametrize("options", here(SESSIONS))
def test_a_case_says_in_a_sentence_what_to_install_and_tests_beside_it_run(run, tmp_path, options):
    (tmp_path / "test_it.py").write_text(CASES)
    done, library = run("-m", "pytest", *options.split()), SESSIONS[options]
    assert done.returncode == (pytest.ExitCode.USAGE_ERROR if library else 0), done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    wanted = [f"ERROR: this needs {library}, which is not installed: pip install "] if library else []
    assert [line[: len(start)] for line, start in zip(lines, wanted, strict=True)] == wanted
