"""Cases that two processes run together, over gloo: measured, wrong, killed, hanging, skipped; and what they leave."""

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.distributed import _symmetric_memory

from pytest_flashinfer_perf.config.settings import Settings
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.ranks import asked, joined
from pytest_flashinfer_perf.session import setup
from pytest_flashinfer_perf.session.stash import DEVICE

CONFTEST = """
import pytest, torch

@pytest.fixture
def mine(perf):
    assert perf.ranks.size == 2, "this fixture is a rank's"
    return torch.randn(1 << 12, generator=torch.Generator().manual_seed(perf.ranks.rank))
"""
TESTS = """
import os, signal, subprocess, sys, time
import pytest
from test_one import all_reduced

pytestmark = pytest.mark.perf_ranks(2)

@pytest.mark.parametrize("by", [9])
def test_wrong_on_one(perf, mine, by):
    def wrong(x):
        y = all_reduced(x)
        if perf.ranks.rank == 1:
            y[5] += by
        return y
    perf.time(wrong, mine, reference=lambda: sum(perf.ranks.all(mine)))

@pytest.mark.perf_ranks(1)
def test_skips(perf):
    pytest.skip("not here")

def test_killed(perf, mine):
    if perf.ranks.rank == 1:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        os.kill(os.getpid(), signal.SIGKILL)
    perf.time(all_reduced, mine)

def test_hangs(perf, mine):
    if perf.ranks.rank == 1:
        time.sleep(600)
    perf.time(all_reduced, mine)
"""
QUICK = ("--perf-iters=10", "--perf-cold-l2=none", "-p", "no:cacheprovider", "--perf-device=cpu")


EXAMPLE = re.search(r"```python\n(.*?)```", (Path(__file__).parents[3] / "docs" / "ranks.md").read_text(), re.DOTALL)[1]


def left_of_ranks(folder):
    """The processes of ranks whose files were in this folder, or that such a process has started."""
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            known = environ.read_bytes()
        except OSError:
            continue
        if f"FLASHINFER_PERF_RANKS_FOLDER={folder}".encode() in known:
            yield environ.parent.name


def test_among_workers_each_end_costs_one_case_and_leaves_nothing(pytester, tmp_path, monkeypatch):
    """The page's example, and ranks that end badly."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_one=EXAMPLE, test_them=TESTS)
    how = ("-n2", "--perf-timeout=4", "--benchmark-json=run.json", "-Werror", "-rs")
    result = pytester.runpytest_subprocess(*QUICK, *how)
    said = result.stdout.str()
    result.assert_outcomes(passed=1, failed=3, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: not here"])
    assert "rank 1 of 2: wrong answer: output 0" in said
    assert "rank 1 of 2: its process was ended by SIGKILL" in said
    assert "rank 1 of 2: no end within 4 s (--perf-timeout), its process was ended" in said
    assert "in test_hangs" in said
    [row] = json.loads(Path("run.json").read_text())["benchmarks"]
    info, seen = row["extra_info"], row["extra_info"]["ranks"]
    assert (row["name"], info["refcheck"]) == ("test_all_reduce", "passed")
    assert (seen["ranks"], seen["figure"], seen["backend"]) == (2, "last arrival to last end", "gloo")
    assert seen["busbw_gb_per_s"] == pytest.approx(info["bytes"] / row["stats"]["median"] / 1e9), "as algbw, of two"
    assert info["sol_pct"] is None, "the memory's roof is not that of links"
    assert [len(times) for times in (*seen["arrivals_s"], *seen["ends_s"])] == [10] * 4
    calls = zip(*seen["arrivals_s"], *seen["ends_s"], strict=True)
    again = [max(ends) - max(arrivals) for *arrivals, end_0, end_1 in calls for ends in [(end_0, end_1)]]
    assert again == pytest.approx(row["stats"]["data"])
    assert seen["max_over_ranks_s"] >= row["stats"]["median"]
    assert not list(left_of_ranks(tmp_path))
    assert not list(tmp_path.glob("flashinfer-perf-ranks-*"))


def test_a_wrong_answer_that_is_allowed_is_the_row_of_the_rank_that_gave_it(pytester):
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.mark.perf_ranks(1)
        def test_wrong_on_one(perf):
            x = torch.ones(8)
            perf.time(lambda x: x + perf.ranks.rank, x, reference=lambda: x)
        """
    )
    how = ("--perf-ranks=2", "--perf-allow-output-mismatch", "--benchmark-json=run.json")
    pytester.runpytest_inprocess(*QUICK, *how).assert_outcomes(passed=1)
    [row] = json.loads(Path("run.json").read_text())["benchmarks"]
    assert (row["extra_info"]["status"], row["extra_info"]["ranks"]["ranks"]) == ("wrong", 2)


@pytest.mark.parametrize(
    ("marker", "given", "sentence"),
    [
        ("perf_ranks", "perf", "perf_ranks takes the number of processes"),
        ("perf_ranks(2, collective='all_reduc')", "perf", "takes one of all_reduce, all_gather,"),
        ("perf_ranks(0)", "perf", "perf_ranks takes the number of processes"),
        ("perf_ranks(2)", "", "perf_ranks is for tests that measure: give it the fixture perf"),
    ],
)
def test_what_could_not_be_one_case_ends_the_session(pytester, marker, given, sentence):
    pytester.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_it({given}):\n    pass\n")
    result = pytester.runpytest_inprocess("--perf-device=cpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{sentence}*"])


def test_ranks_end_with_the_session_that_started_them(pytester, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    waits = "import pytest, time\n@pytest.mark.perf_ranks(1)\ndef test_it(perf):\n    time.sleep(600)\n"
    command = [sys.executable, "-m", "pytest", str(pytester.makepyfile(waits)), *QUICK]
    session = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    assert soon(lambda: len(list(tmp_path.glob("*/*.begun"))) == 1)
    assert list(left_of_ranks(tmp_path))
    session.kill()
    session.wait()
    assert soon(lambda: not list(left_of_ranks(tmp_path)))


def soon(holds):
    end = time.monotonic() + 30
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def test_a_gpu_that_cases_share_is_locked_for_a_case_alone(pytester, tmp_path, monkeypatch, hopper):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = pytester.parseconfigure()
    config.stash[setup.BY_CASE] = True
    with setup.turn(config, Settings(), hopper):
        assert is_locked(tmp_path, "GPU-0")
    assert not is_locked(tmp_path, "GPU-0")
    with setup.turn_of_all(config, ["GPU-1", "GPU-0"]):
        assert is_locked(tmp_path, "GPU-0")
        assert is_locked(tmp_path, "GPU-1")


def is_locked(folder, name):
    with (folder / f"flashinfer-perf-{name}.lock").open() as another:
        try:
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_the_environment_of_a_rank_is_no_sessions_and_has_all_gpus(monkeypatch):
    for name, value in {"PYTEST_ADDOPTS": "-n 2", "CUDA_VISIBLE_DEVICES": "1", "FLASHINFER_PERF_GPUS": "0,1"}.items():
        monkeypatch.setenv(name, value)
    for name in asked.NO_MULTICAST:
        monkeypatch.delenv(name, raising=False)
    free = asked.environment(2, 1, "folder", no_multicast=False)
    assert "PYTEST_ADDOPTS" not in free
    assert (free["CUDA_VISIBLE_DEVICES"], free["RANK"], free["WORLD_SIZE"]) == ("0,1", "1", "2")
    assert free[asked.STARTER] == str(os.getpid()), "its parent, which may be process 1"
    assert asked.multicast(free) == "multicast allowed"
    assert asked.multicast(asked.environment(2, 1, "folder", no_multicast=True)) == "no multicast"
    for name, off in asked.NO_MULTICAST.items():
        monkeypatch.setenv(name, off)
        assert asked.multicast(asked.environment(2, 1, "folder", no_multicast=False)) == "no multicast", name
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    monkeypatch.setenv("NVSHMEM_DISABLE_NVLS", "1")
    mixed = asked.environment(2, 1, "folder", no_multicast=False)
    assert (mixed["NCCL_NVLS_ENABLE"], mixed["TORCH_SYMM_MEM_DISABLE_MULTICAST"]) == ("1", "1")
    assert asked.multicast(asked.environment(2, 1, "folder", no_multicast=True)) == "no multicast"


@pytest.mark.parametrize(
    ("environment", "option", "runs"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"NCCL_NVLS_ENABLE": "1"}, False, True),
        ({"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}, False, True),
        ({"RANK": "0"}, False, False),
    ],
)
def test_a_case_between_gpus_wants_to_be_told_about_multicast(environment, option, runs):
    assert (asked.undecided(environment, no_multicast=option) is None) == runs


def test_memory_that_ranks_share_for_a_barrier_never_has_multicast(monkeypatch, hopper):
    """torch reads the variable when ranks exchange their memory."""
    seen = []
    monkeypatch.setenv(variable := "TORCH_SYMM_MEM_DISABLE_MULTICAST", "0")
    monkeypatch.setattr(_symmetric_memory, "empty", lambda *size, **_: size)
    monkeypatch.setattr(_symmetric_memory, "rendezvous", lambda *_: seen.append(os.environ[variable]))
    assert joined.Ranks(0, 2, None, hopper).shared((4, 8), torch.uint8)[0] == (4, 8)
    assert (seen, os.environ[variable]) == (["1"], "0")


def test_on_a_cpu_ranks_lock_and_need_no_gpu(pytester, monkeypatch):
    """Nor is the test skipped where there is one GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(asked, "_uuids", lambda _visible: ["GPU-0"])
    item = pytester.getitem("def test_func(): pass")
    item.config.stash[DEVICE] = devices.find("cpu")
    assert asked.locks(item, 2) == []


TAKES = """
import sys
from pytest_flashinfer_perf.session.gpu_lock import alone_on_all
for _ in range(5_000):
    with alone_on_all(sys.argv[1:], lambda path: None):
        pass
"""


def test_all_locks_are_taken_in_one_order(tmp_path, monkeypatch):
    """Two that take the same ones in opposite orders would soon wait for each other."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    orders = (["GPU-0", "GPU-1"], ["GPU-1", "GPU-0"])
    running = [subprocess.Popen([sys.executable, "-c", TAKES, *order]) for order in orders]
    try:
        assert [one.wait(30) for one in running] == [0, 0]
    finally:
        for one in running:
            one.kill()
            one.wait()
