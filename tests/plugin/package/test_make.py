"""What `make` installs is decided by whether there is an NVIDIA driver, and what it runs comes to an end."""

import os
import re
import subprocess
import sys

import pytest
from documents import ROOT


@pytest.fixture
def planned(tmp_path):
    """What make would do where nvidia-smi says this."""

    def plan(target, *variables, smi="exit 9"):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={tmp_path}/venv", *variables]
        env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout

    return plan


@pytest.mark.parametrize(("target", "extras"), [("bench", "-e '.[gpu,report]'"), ("test", "-e '.[gpu,dev,trace]'")])
def test_with_a_driver_torch_is_a_cuda_build(planned, target, extras):
    plan = planned(target, smi="echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'")
    assert extras in plan
    assert "-c constraints-cpu.txt" not in plan
    assert "torch.version.cuda or sys.exit(" in plan


@pytest.mark.parametrize(
    ("target", "extras"), [("bench", "-e '.[bench,report]'"), ("test", "-e '.[dev,trace]' flashinfer-python")]
)
@pytest.mark.parametrize("smi", ["exit 9", "echo 'No devices were found'"])
def test_without_one_it_is_the_pinned_build(planned, target, extras, smi):
    plan = planned(target, smi=smi)
    assert f"install --no-compile -c constraints-cpu.txt {extras}\n" in plan
    assert "[gpu" not in plan


BAD_ENDS = """
import os, signal, time
import pytest

def test_dies(): os.kill(os.getpid(), signal.SIGKILL)
def test_ends(): pass  # a worker has two at the beginning
def test_sleeps(): time.sleep(1000)

@pytest.mark.parametrize("n", range(100))
def test_waits(n): time.sleep(1)
"""


@pytest.mark.more
def test_a_worker_that_dies_and_a_test_without_end_are_named_and_end_the_run(planned, tmp_path):
    """By the command of `make test` with a shorter limit, on the tests of another folder.

    By then all others have ended: the lines of two workers would be written into each other.
    """
    folder = tmp_path / "tests"
    folder.mkdir()
    (folder / "test_ends.py").write_text(BAD_ENDS)
    (folder / "conftest.py").write_text(
        "pytest_plugins = 'sharing'\n"  # as ours, with the marker
        "def pytest_configure(config): config.addinivalue_line('markers', 'more')\n"
    )
    tests = f"TESTS={folder} -c pyproject.toml --timeout=8 -o faulthandler_timeout=4"
    [command] = [line for line in planned("test", tests, f"VENV={sys.prefix}").splitlines() if str(folder) in line]
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    for name in ("test_dies", "test_sleeps"):
        assert re.search(rf"^FAILED .*::{name} - worker 'gw\d' crashed", done.stdout, re.MULTILINE), done.stdout
    assert re.search("in test_sleeps$", done.stderr, re.MULTILINE), done.stderr
    ended = re.search(r"2 failed(?:, (\d+) passed)? in", done.stdout)
    assert ended, done.stdout
    assert int(ended[1] or 0) < 10


@pytest.mark.parametrize(("smi", "has_gpu"), [("exit 9", False), ("echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'", True)])
def test_the_first_screen_is_the_smoke_tier_where_there_is_a_gpu(planned, smi, has_gpu):
    plan = planned("bench", smi=smi)
    assert ("bench --perf-suite=smoke" in plan, "first_screen.py" in plan) == (has_gpu, not has_gpu)
    assert "bench --perf-suite=smoke" in planned("bench-smoke", smi=smi)
