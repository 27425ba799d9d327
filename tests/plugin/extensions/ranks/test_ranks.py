"""Cases that several processes run together, over gloo: measured, wrong, killed, hanging, refused; what they leave."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from step_runs import TINY, completed
from torch.distributed import _symmetric_memory

from pytest_flashinfer_perf.extensions.many import gpus
from pytest_flashinfer_perf.extensions.models import budget
from pytest_flashinfer_perf.extensions.models.deployment import Step
from pytest_flashinfer_perf.extensions.ranks import group, joined, pytest_perf_devices, rank_environment
from pytest_flashinfer_perf.machine import devices
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.spec.presets import Spread

ROOT = Path(__file__).parents[4]
EXAMPLE = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "ranks.md").read_text(), re.DOTALL)[1]
CONFTEST = """
import pytest, torch

@pytest.fixture
def mine(perf):
    assert perf.ranks.size == 2, "this fixture is a rank's"
    return torch.randn(1 << 12, generator=torch.Generator().manual_seed(perf.ranks.rank))
"""
BADLY = """
import os, signal, subprocess, sys, time
import pytest, torch
from test_one import all_reduced

pytestmark = pytest.mark.perf_ranks(2)

def test_wrong_on_one(perf, mine):
    def wrong(x):
        y = all_reduced(x)
        if perf.ranks.rank == 1:
            y[5] += 9
        return y
    perf.time(wrong, mine, reference=lambda: sum(perf.ranks.all(mine)))

def test_killed(perf, mine):
    if perf.ranks.rank == 1:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        of_other = os.path.join(os.environ["FLASHINFER_PERF_RANKS_FOLDER"], "0.json")
        torch.distributed.destroy_process_group()  # who has a GPU is gone long after the others have noticed
        while not os.path.exists(of_other):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    perf.time(all_reduced, mine)

@pytest.mark.perf_ranks(1)
def test_skips(perf):
    pytest.skip("not here")

def test_hangs(perf, mine):
    if perf.ranks.rank == 1:
        time.sleep(600)
    perf.time(all_reduced, mine)
"""


def left_of_ranks(folder):
    """The processes of ranks whose files were in this folder, or that such a process has started, and the folders."""
    yield from folder.glob("flashinfer-perf-ranks-*")
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            known = environ.read_bytes()
        except OSError:
            continue
        if f"FLASHINFER_PERF_RANKS_FOLDER={folder}".encode() in known:
            yield environ.parent


@pytest.fixture
def ranks(session, tmp_path, monkeypatch):
    """Starts a session whose ranks meet below the test's folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return session


def test_a_row_is_of_all_ranks_and_a_rank_that_dies_costs_one_case_and_leaves_nothing(ranks, tmp_path):
    """The page's example, and a wrong answer, which is allowed: the row is of the rank that gave it."""
    how = ("--perf-allow-output-mismatch", "-k", "not skips and not hangs")
    done = ranks(*how, "-Werror", conftest=CONFTEST, test_one=EXAMPLE, test_them=BADLY)
    assert done.outcomes == {"passed": 2, "failed": 1, "deselected": 2}, done.out
    killed = "rank 1 of 2: its process was ended by SIGKILL, as a machine does that is out of memory"
    assert re.search(rf"{killed}\n(  at test_them.py:\d+\n)?rank 0 of 2: RuntimeError", done.out), done.out
    info = done["test_all_reduce"]["extra_info"]
    seen = info["ranks"]
    assert info["refcheck"] == "passed"
    assert (seen["ranks"], seen["backend"]) == (2, "gloo")
    median = done["test_all_reduce"]["stats"]["median"]
    assert seen["busbw_gb_per_s"] == pytest.approx(info["bytes"] / median / 1e9), "as algbw, of two"
    assert info["sol_pct"] is None, "the memory's roof is not that of links"
    assert seen["max_over_ranks_s"] >= median
    wrong = done["test_wrong_on_one"]["extra_info"]
    assert (wrong["status"], wrong["ranks"]["ranks"]) == ("wrong", 2)
    assert not list(left_of_ranks(tmp_path))


@pytest.mark.more
def test_among_workers_each_end_costs_one_case_and_leaves_nothing(ranks, tmp_path):
    how = ("-n2", "--perf-timeout=20", "--perf-device=cpu:any", "-Werror", "-rs")
    done = ranks(*how, process=True, conftest=CONFTEST, test_one=EXAMPLE, test_them=BADLY)
    assert done.outcomes == {"passed": 1, "failed": 3, "skipped": 1}, done.out
    done.says("SKIPPED*: not here")
    assert "rank 1 of 2: wrong answer: output 0" in done.out
    assert "rank 1 of 2: its process was ended by SIGKILL" in done.out
    assert "rank 1 of 2: no end within 20 s (--perf-timeout), its process was ended" in done.out
    assert "in test_hangs" in done.out
    assert list(done.rows) == ["test_all_reduce"]
    assert not list(left_of_ranks(tmp_path))


@pytest.mark.more
def test_ranks_end_with_the_session_that_started_them(pytester, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    waits = "import pytest, time\n@pytest.mark.perf_ranks(1)\ndef test_it(perf):\n    time.sleep(600)\n"
    command = [sys.executable, "-m", "pytest", str(pytester.makepyfile(waits)), "--perf-device=cpu"]
    session = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    assert soon(lambda: len(list(tmp_path.glob("*/*.begun"))) == 1)
    session.kill()
    session.wait()
    assert soon(lambda: list(left_of_ranks(tmp_path)) == list(tmp_path.glob("flashinfer-perf-ranks-*")))


def soon(holds):
    end = time.monotonic() + 60
    while not holds() and time.monotonic() < end:
        time.sleep(0.05)
    return holds()


def test_how_many_ranks_a_cpu_has(cpu, hopper, monkeypatch):
    class Small(devices.Device):
        def free_bytes(self):
            return 3 * group.BYTES_OF_A_RANK

    small = Small(**vars(cpu))
    for cores, most in ((1, 2), (2, 2), (3, 3), (8, 3)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert [number for number in range(1, 9) if group.too_many(number, small) is None] == list(range(1, most + 1))
    assert group.too_many(9, hopper) is None, "that GPUs are fewer is said before"


def test_a_routines_case_is_one_of_ranks_and_counts_per_layer_of_a_models_step(ranks, pytester):
    """Also where no file is named, and the suite is not below the session's folder."""
    pytester.mkdir("tiny").joinpath("config.json").write_text(json.dumps(TINY))
    sizes = "--num_tokens 4 --hidden_size 256 --num_gpus 2"
    assert ranks(f"--perf-case=--routine allreduce_fusion --backends torch {sizes}").outcomes["passed"] == 1
    step = completed("tiny", step=Step(batch=4, context=128, page_size=16, spread=Spread(2)))
    [entry] = [one for one in budget.of_run(step, run_file.read(Path("run.json"))).entries if one.row]
    assert (entry.kernel.name, entry.kernel.count) == ("all-reduce", 2 * TINY["num_hidden_layers"])


@pytest.mark.parametrize(
    ("marker", "given", "sentence"),
    [
        ("perf_ranks", "perf", "perf_ranks takes the number of processes"),
        ("perf_ranks(2, collective='all_reduc')", "perf", "takes one of all_reduce, all_gather,"),
        ("perf_ranks(0)", "perf", "perf_ranks takes the number of processes"),
        ("perf_ranks(2)", "", "perf_ranks is for tests that measure: give it the fixture perf"),
    ],
)
def test_what_could_not_be_one_case_ends_the_session(session, marker, given, sentence):
    done = session(test_it=f"import pytest\n@pytest.mark.{marker}\ndef test_it({given}):\n    pass\n")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains(f"*{sentence}*")


def test_the_environment_of_a_rank_is_no_sessions_and_has_all_gpus(monkeypatch):
    for name, value in {"PYTEST_ADDOPTS": "-n 2", "CUDA_VISIBLE_DEVICES": "1", "FLASHINFER_PERF_GPUS": "0,1"}.items():
        monkeypatch.setenv(name, value)
    for name in rank_environment.NO_MULTICAST:
        monkeypatch.delenv(name, raising=False)

    def made(*, no_multicast=False):
        return rank_environment.environment(2, 1, "folder", no_multicast=no_multicast)

    assert "PYTEST_ADDOPTS" not in made()
    assert [made()[name] for name in ("CUDA_VISIBLE_DEVICES", "RANK", "WORLD_SIZE")] == ["0,1", "1", "2"]
    assert made()[rank_environment.STARTER] == str(os.getpid()), "its parent, which may be process 1"
    assert rank_environment.multicast(made()) == "multicast allowed"
    assert rank_environment.multicast(made(no_multicast=True)) == "no multicast"
    for name, off in rank_environment.NO_MULTICAST.items():
        monkeypatch.setenv(name, off)
        assert rank_environment.multicast(made()) == "no multicast", name
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "1")
    monkeypatch.setenv("NVSHMEM_DISABLE_NVLS", "1")
    assert [made()[name] for name in ("NCCL_NVLS_ENABLE", "TORCH_SYMM_MEM_DISABLE_MULTICAST")] == ["1", "1"]
    assert rank_environment.multicast(made(no_multicast=True)) == "no multicast"


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
    assert (rank_environment.undecided(environment, no_multicast=option) is None) == runs


def test_memory_that_ranks_share_for_a_barrier_never_has_multicast(monkeypatch, hopper):
    """torch reads the variable when ranks exchange their memory."""
    seen = []
    monkeypatch.setenv(variable := "TORCH_SYMM_MEM_DISABLE_MULTICAST", "0")
    monkeypatch.setattr(_symmetric_memory, "empty", lambda *size, **_: size)
    monkeypatch.setattr(_symmetric_memory, "rendezvous", lambda *_: seen.append(os.environ[variable]))
    assert joined.Ranks(0, 2, None, hopper).shared((4, 8), torch.uint8)[0] == (4, 8)
    assert (seen, os.environ[variable]) == (["1"], "0")


@pytest.mark.parametrize(("seen", "locked"), [([], []), (["GPU-0", "GPU-1", "GPU-2"], ["GPU-0", "GPU-1"])])
def test_a_test_has_as_many_of_the_sessions_gpus_as_it_has_ranks(pytester, monkeypatch, seen, locked):
    monkeypatch.setattr(gpus, "of_session", lambda: seen)
    tests = "import pytest\ndef test_one(): pass\n@pytest.mark.perf_ranks(2)\ndef test_two(): pass"
    assert list(map(pytest_perf_devices, pytester.getitems(tests))) == [None, locked]


@pytest.mark.parametrize(
    ("option", "marker", "body", "sentence"),
    [
        ("-rs", "", "perf.ranks.size", "test_it.py::test_it: perf.ranks.size needs @pytest.mark.perf_ranks(n)"),
        ("--perf-fuzz", "@pytest.mark.perf_ranks(2)", "perf.time(int)", "the call is one of several processes, which"),
    ],
)
def test_what_is_asked_of_no_ranks_is_said(session, option, marker, body, sentence):
    done = session(option, "-rs", test_it=f"import pytest\n{marker}\ndef test_it(perf):\n    {body}\n")
    assert sentence in done.out
