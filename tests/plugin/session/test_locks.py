"""A device measures for one session at a time."""

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from pytest_flashinfer_perf.config.settings import Settings
from pytest_flashinfer_perf.session import gpu_lock, setup


@pytest.fixture
def taken(tmp_path, monkeypatch):
    """A lock that somebody else has; called, they let go of it."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened = []

    def take(name):
        opened.append((tmp_path / f"flashinfer-perf-{name}.lock").open("w"))
        fcntl.flock(opened[0], fcntl.LOCK_EX)
        return opened[0].close

    yield take
    opened[0].close()


def test_a_session_waits_for_its_gpu_and_says_so(pytester, taken, monkeypatch, hopper):
    config, let_go, said = pytester.parseconfigure(), taken("GPU-0"), []
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    monkeypatch.setattr(terminal, "write_line", lambda line: (said.append(line), let_go()))
    setup.be_alone(config, hopper)
    assert said == [f"waiting for NVIDIA H200: another run holds {tempfile.gettempdir()}/flashinfer-perf-GPU-0.lock"]
    with (Path(tempfile.gettempdir()) / "flashinfer-perf-GPU-0.lock").open() as another, pytest.raises(BlockingIOError):
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_workers_of_a_cpu_take_turns_unless_told(pytester, taken, cpu):
    config, let_go = pytester.parseconfigure(), taken("cpu")
    config.workerinput = {}
    with setup.turn(config, Settings(device="cpu:any"), cpu):
        pass
    released = threading.Timer(0.2, let_go)
    released.start()
    since = time.monotonic()
    with setup.turn(config, Settings(device="auto"), cpu):
        assert time.monotonic() - since > 0.15


def test_every_user_of_a_machine_can_wait_for_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    usual = os.umask(0o077)
    with gpu_lock.alone_on("GPU-0", print):
        os.umask(usual)
    assert (tmp_path / "flashinfer-perf-GPU-0.lock").stat().st_mode & 0o777 == 0o644


def test_what_a_process_starts_measures_under_its_lock(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    program = "from pytest_flashinfer_perf.session.gpu_lock import alone_on\nwith alone_on('GPU-0', print): print('in')"
    with gpu_lock.alone_on("GPU-0", print):
        child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert child.stdout == "in\n"
    assert "GPU-0" not in os.environ[gpu_lock.HOLDS]
