"""A device measures for one session at a time."""

import fcntl
import os
import subprocess
import sys

import pytest

from pytest_flashinfer_perf.session import gpu_lock, setup
from pytest_flashinfer_perf.settings.settings import Settings


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where this test's locks are."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def taken(folder, monkeypatch):
    """A lock that somebody else has; they let go of it when this process begins to wait for it."""
    take, waited = fcntl.flock, []

    def flock(descriptor, how):
        if how == fcntl.LOCK_EX:
            waited.append(descriptor)
            holder.close()
        take(descriptor, how)

    def held(name):
        nonlocal holder
        holder = (folder / f"flashinfer-perf-{name}.lock").open("w")
        take(holder, fcntl.LOCK_EX)
        monkeypatch.setattr("fcntl.flock", flock)
        return waited

    holder = None
    yield held
    holder.close()


def test_a_session_waits_for_its_gpu_and_says_so(pytester, taken, folder, monkeypatch, hopper):
    config, waited, said = pytester.parseconfigure(), taken("GPU-0"), []
    monkeypatch.setattr(config.pluginmanager.get_plugin("terminalreporter"), "write_line", said.append)
    setup.be_alone(config, hopper)
    assert said == [f"waiting for NVIDIA H200: another run holds {folder}/flashinfer-perf-GPU-0.lock"]
    assert len(waited) == 1
    with (folder / "flashinfer-perf-GPU-0.lock").open() as another, pytest.raises(BlockingIOError):
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(("device", "waits"), [("cpu:any", 0), ("auto", 1)])
def test_workers_of_a_cpu_take_turns_unless_told(pytester, taken, cpu, device, waits):
    item, waited = pytester.getitem("def test_func(): pass"), taken("cpu")
    item.config.workerinput = {}
    with setup.turn(item, Settings(device=device), cpu):
        assert len(waited) == waits


class Needs:
    """A plugin whose tests have these GPUs."""

    def __init__(self, *uuids):
        self.uuids = uuids

    def pytest_perf_devices(self, item):
        return None if "test_alone" in item.nodeid else self.uuids


@pytest.mark.parametrize("needs", [("GPU-0",), ("GPU-0", "GPU-1")])
def test_gpus_that_tests_share_are_locked_for_each_test(pytester, folder, hopper, needs):
    """And for the session, where no test names those that it needs."""
    alone, wide = items = pytester.getitems("def test_alone(): pass\ndef test_wide(): pass")
    alone.config.pluginmanager.register(Needs(*needs))
    assert (setup.share_gpus(items, hopper), setup.share_gpus([alone], hopper)) == (True, False)
    alone.config.stash[setup.BY_CASE] = True
    for item, names in ((alone, ("GPU-0",)), (wide, needs)):
        with setup.turn(item, Settings(), hopper):
            assert {name for name in ("GPU-0", "GPU-1") if is_locked(folder, name)} == set(names)
    assert not is_locked(folder, "GPU-0")


def is_locked(folder, name):
    with (folder / f"flashinfer-perf-{name}.lock").open("w") as another:
        try:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


TAKES = """
import sys
from pytest_flashinfer_perf.session.gpu_lock import alone_on_all
for _ in range(5_000):
    with alone_on_all(sys.argv[1:], lambda path: None):
        pass
"""


@pytest.mark.more
def test_all_locks_are_taken_in_one_order(tmp_path, monkeypatch):
    """Two that take the same ones in opposite orders would soon wait for each other."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    orders = (["GPU-0", "GPU-1"], ["GPU-1", "GPU-0"])
    running = [subprocess.Popen([sys.executable, "-c", TAKES, *order]) for order in orders]
    try:
        assert [one.wait(60) for one in running] == [0, 0]
    finally:
        for one in running:
            one.kill()
            one.wait()


def test_every_user_of_a_machine_can_wait_for_its_lock(folder):
    usual = os.umask(0o077)
    with gpu_lock.alone_on("GPU-0", print):
        os.umask(usual)
    assert (folder / "flashinfer-perf-GPU-0.lock").stat().st_mode & 0o777 == 0o644


def test_what_a_process_starts_measures_under_its_lock():
    program = "from pytest_flashinfer_perf.session.gpu_lock import alone_on\nwith alone_on('GPU-0', print): print('in')"
    with gpu_lock.alone_on("GPU-0", print):
        child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert child.stdout == "in\n"
    assert "GPU-0" not in os.environ[gpu_lock.HOLDS]
