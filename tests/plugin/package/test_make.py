"""What `make` installs is decided by whether there is an NVIDIA driver, and what it runs comes to an end."""

import os
import re
import subprocess
import sys
from pathlib import Path

import fair_timeout
import pytest


def planned(target, folder, root, *variables):
    path = f"{folder}:{os.environ['PATH']}"
    command = ["make", "--dry-run", target, f"VENV={folder}/venv", *variables]
    return subprocess.run(
        command, cwd=root, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
    ).stdout


@pytest.fixture
def driver(tmp_path):
    def fake(says):
        smi = tmp_path / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\n{says}\n")
        smi.chmod(0o755)
        return tmp_path

    return fake


@pytest.mark.parametrize(("target", "extras"), [("bench", "-e '.[gpu]'"), ("test", "-e '.[gpu,dev,trace]'")])
def test_with_a_driver_torch_is_a_cuda_build(driver, pytestconfig, target, extras):
    plan = planned(target, driver("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'"), pytestconfig.rootpath)
    assert extras in plan
    assert "-c constraints-cpu.txt" not in plan
    assert "torch.version.cuda or sys.exit(" in plan


@pytest.mark.parametrize(
    ("target", "extras"), [("bench", "-e '.[bench]'"), ("test", "-e '.[dev,trace]' flashinfer-python")]
)
@pytest.mark.parametrize("says", ["exit 9", "echo 'No devices were found'"])
def test_without_one_it_is_the_pinned_build(driver, pytestconfig, target, extras, says):
    plan = planned(target, driver(says), pytestconfig.rootpath)
    assert f"install --no-compile -c constraints-cpu.txt {extras}\n" in plan
    assert "[gpu" not in plan


def test_the_site_of_the_documents_needs_its_extra_alone(tmp_path, pytestconfig):
    lines = planned("docs", tmp_path, pytestconfig.rootpath).splitlines()
    extra = re.search(r"\$\((sed -n .* pyproject.toml)\)", "\n".join(lines))[1]
    listed = subprocess.run(extra, shell=True, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=True)
    assert [re.split(">=", line)[0] for line in listed.stdout.split()] == ["furo", "myst-parser", "sphinx-external-toc"]
    assert any(line.endswith(" -m sphinx -W --keep-going -q -c docs/site . results/site") for line in lines)


def test_the_consumers_programs_are_run_in_ci(tmp_path, pytestconfig):
    plan = planned("consumers", tmp_path, pytestconfig.rootpath)
    assert "python tests/acceptance/consumers.py\n" in plan
    assert " consumers " in (pytestconfig.rootpath / ".ci" / "run").read_text()


BAD_ENDS = """
import os, signal, time
import pytest

def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_ends(): pass  # a worker has two at the beginning
def test_sleeps(): time.sleep(1000)

@pytest.mark.parametrize("n", range(100))
def test_waits(n): time.sleep(1)
"""


def test_a_worker_that_dies_and_a_test_without_end_are_named_and_end_the_run(driver, tmp_path, pytestconfig):
    """By the command of `make test` with a shorter limit, on the tests of another folder.

    By then all others have ended: the lines of two workers would be written into each other.
    """
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_ends.py").write_text(BAD_ENDS)
    (folder / "conftest.py").write_text("pytest_plugins = 'sharing'")  # as ours
    tests = f"TESTS={folder} -c pyproject.toml --timeout=8 -o faulthandler_timeout=4"
    plan = planned("test", driver("exit 9"), pytestconfig.rootpath, tests, f"VENV={sys.prefix}")
    [command] = [line for line in plan.splitlines() if str(folder) in line]
    done = subprocess.run(
        command, shell=True, cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    for name in ("test_dies", "test_sleeps"):
        assert re.search(rf"^FAILED .*::{name} - worker 'gw\d' crashed", done.stdout, re.MULTILINE), done.stdout
    assert re.search("in test_sleeps$", done.stderr, re.MULTILINE), done.stderr
    ended = re.search(r"2 failed(?:, (\d+) passed)? in", done.stdout)
    assert ended, done.stdout
    assert int(ended[1] or 0) < 10


@pytest.mark.parametrize(("busy", "cores", "part"), [(1, 2, 1), (2, 2, 1), (8, 2, 0.25), (3, 1, 1 / 3), (0, 1, 1)])
def test_a_second_of_a_core_that_others_use_counts_as_a_part(busy, cores, part):
    assert fair_timeout.share(f"2.20 1.86 1.46 {busy}/110 7666\n", cores) == pytest.approx(part)


@pytest.mark.parametrize(("part", "passed"), [(1.0, False), (0.01, True)])
def test_a_limit_is_met_by_what_a_test_could_use(pytester, monkeypatch, part, passed):
    """The test takes two seconds and may take one."""
    monkeypatch.setenv("PYTHONPATH", str(Path(fair_timeout.__file__).parent), prepend=os.pathsep)
    pytester.makeconftest(f"import fair_timeout as f\nf.share = lambda *_: {part}\npytest_plugins = 'fair_timeout'")
    pytester.makepyfile("import time\ndef test_sleeps(): time.sleep(2)")
    done = pytester.runpytest_subprocess("--timeout=1", "--timeout-method=thread", "-p", "no:cacheprovider")
    assert ("1 passed" in done.stdout.str(), done.ret) == (passed, not passed)
