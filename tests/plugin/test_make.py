"""What `make` installs is decided by whether there is an NVIDIA driver."""

import os
import subprocess

import pytest


def planned(target, folder, root):
    path = f"{folder}:{os.environ['PATH']}"
    command = ["make", "--dry-run", target, f"VENV={folder}/venv"]
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
    assert "constraints-cpu.txt" not in plan
    assert "torch.version.cuda or sys.exit(" in plan


@pytest.mark.parametrize(("target", "extras"), [("bench", "-e ."), ("test", "-e '.[dev,trace]' flashinfer-python")])
@pytest.mark.parametrize("says", ["exit 9", "echo 'No devices were found'"])
def test_without_one_it_is_the_pinned_build(driver, pytestconfig, target, extras, says):
    plan = planned(target, driver(says), pytestconfig.rootpath)
    assert f"install -c constraints-cpu.txt {extras}\n" in plan
    assert "[gpu" not in plan
