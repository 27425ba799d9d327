"""The plugin beside pytest-benchmark, xdist and other people's tests: what `perf` is, and what it leaves alone."""

import io
import shlex
import sys

import pytest
import torch
from declared import here
from decode_cases import QUICK, TEST

from pytest_flashinfer_perf.machine import builds
from pytest_flashinfer_perf.session import progress

OWN = "import torch\ndef test_own(perf): perf.time(torch.neg, torch.ones(8))\n"


@pytest.mark.parametrize(
    ("option", "outcome", "recorded"),
    [
        ("--benchmark-only", {"passed": 1, "skipped": 1}, 1),
        ("--benchmark-skip", {"passed": 1, "skipped": 1}, 0),
        ("--benchmark-disable", {"passed": 2}, 0),
    ],
)
def test_options_of_pytest_benchmark_keep_working(session, option, outcome, recorded):
    done = session(option, test_own=f"{OWN}def test_plain(): pass")
    assert (done.outcomes, len(done.rows)) == (outcome, recorded)


def test_a_row_that_pytest_benchmark_would_lose_fails_its_test(session, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    done = session(test_own=OWN)
    assert done.outcomes == {"failed": 1}
    done.says("*pytest-benchmark is off and would lose this row: unset PYTEST_XDIST_WORKER, *")


def test_without_pytest_benchmark_there_are_no_rows_and_it_is_said(pytester):
    pytester.makepyfile(OWN)
    done = pytester.runpytest(*QUICK, "-p", "no:benchmark")
    assert done.ret != 0
    done.stderr.fnmatch_lines(["ERROR: rows are pytest-benchmark's: leave out -p no:benchmark"])


def test_saving_comparing_and_histograms_keep_working(session, pytester):
    stored = ("--perf-backends=torch", "--benchmark-storage=file://store")
    assert session(*stored, "--benchmark-autosave", test_decode=TEST).outcomes == {"passed": 2}
    again = session(*stored, "--benchmark-compare")
    again.complains("*Comparing against benchmarks from: *")
    assert "machine_info is different" not in again.out + again.err
    saved = str(next((pytester.path / "store").rglob("*.json")))
    compared = pytester.run(sys.executable, "-m", "pytest_benchmark", "compare", saved)
    assert compared.ret == 0
    compared.stdout.fnmatch_lines(["*test_decode[[]b2-s16-h4-kv2-d16-p4-torch]*"])


@pytest.mark.parametrize("of_project", [False, True])
def test_the_machine_is_described_once_and_before_cases_run(session, monkeypatch, of_project):
    """py-cpuinfo waits for a process of its own, 1.1 s on one machine: while cases are collected, not at the end."""
    events = []

    def described():
        events.append("described")
        return {"brand_raw": "a CPU", "hz_actual": [1, 0]}

    monkeypatch.setattr("cpuinfo.get_cpu_info", described)
    monkeypatch.setattr(torch, "flashinfer_perf_events", events, raising=False)
    hook = "def pytest_benchmark_generate_machine_info(): return {'cpu': {'brand_raw': 'known'}}"
    case = OWN.replace("perf.time", "torch.flashinfer_perf_events.append('case'); perf.time")
    cpu = session(conftest=hook if of_project else "", test_own=case).document["machine_info"]["cpu"]
    expected = (["case"], {"brand_raw": "known"}) if of_project else (["described", "case"], {"brand_raw": "a CPU"})
    assert (events, cpu) == expected


def test_a_plain_benchmark_beside_ours_is_left_alone(session):
    plain = "def test_plain(benchmark): assert benchmark.pedantic(lambda: 7, rounds=3) == 7"
    done = session(quick=False, test_plain=plain)
    assert done.outcomes == {"passed": 1}
    assert "flashinfer_perf" not in done.document
    assert "torch" not in done.document["machine_info"]
    assert done["test_plain"]["options"]["timer"] == "perf_counter"
    assert "= flashinfer-perf =" not in done.out


MISUSED = """
import pytest, torch

def test_twice(perf):
    perf.time(torch.neg, torch.ones(8))
    perf.time(torch.neg, torch.ones(8))

def test_dynamic(request): request.getfixturevalue("perf")
def test_both(perf, benchmark): benchmark(lambda: 1)
def test_argument(perf): perf.time(torch.neg, torch.ones(8))
"""


def test_a_test_asks_for_perf_as_an_argument_and_measures_once_with_it_alone(session):
    done = session(test_own=MISUSED)
    assert done.outcomes == {"failed": 3, "passed": 1}
    for said in (
        "*perf makes one row per test: parametrize the test to measure more*",
        "*perf must be an argument of the test itself*",
        "*measures through perf(...) or perf.time(...), not benchmark(...)*",
    ):
        done.says(said)
    alone = session("-k", "dynamic")
    assert alone.outcomes == {"failed": 1, "deselected": 3}


@pytest.mark.parametrize("option", here(["-v", "--benchmark-disable", "--perf-refcheck=only", "--perf-fuzz"]))
def test_a_test_that_measures_nothing_is_no_test_that_has_passed(session, option):
    """Where it says why not, that counts."""
    done = session(
        option,
        test_own="""
        import pytest
        def test_forgets(perf): pass
        def test_skips(perf): pytest.skip("not here")
        def test_wants(perf): pytest.importorskip("no_such_module")
        @pytest.mark.xfail(strict=True)
        def test_known(perf): pass
        """,
    )
    assert done.outcomes == {"failed": 1, "skipped": 2, "xfailed": 1}
    done.says("nothing was measured: call perf(case) or perf.time(...), or pytest.skip(reason), or *")


NOT_OURS = """
import pytest, sys

@pytest.fixture
def perf(): return 7

def test_fixture(perf, benchmark): benchmark.pedantic(lambda: perf)

@pytest.mark.parametrize("perf", [7])
def test_parameter(perf): assert perf == 7

class TestOfAClass:
    @pytest.fixture
    def perf(self): return 7

    def test_method(self, perf): assert perf == 7

    @pytest.mark.parametrize("perf", [7], indirect=True)
    def test_indirect(self, perf): assert perf == 7
"""


def test_somebody_elses_perf_is_left_alone(session):
    """Who defines it decides, not its name: nothing is measured, and no device is looked for."""
    done = session("--perf-device=cuda:7", test_perf=NOT_OURS)
    assert done.outcomes == {"passed": 4}
    assert "flashinfer-perf ====" not in done.out
    assert "flashinfer_perf" not in done.document


def test_somebody_elses_perf_does_not_import_torch(session, monkeypatch):
    monkeypatch.delenv("PYTEST_PLUGINS")  # the script of times needs it
    program = NOT_OURS + "\ndef test_torch(): assert 'torch' not in sys.modules\n"
    assert session(process=True, test_perf=program).outcomes == {"passed": 5}


def test_a_fixture_that_is_made_of_ours_measures(session):
    of_ours = "import pytest\n@pytest.fixture\ndef perf(perf): return lambda fn: perf.time(fn, torch.ones(8))\n"
    done = session(test_own=f"{of_ours}{OWN.replace('perf.time(torch.neg, torch.ones(8))', 'perf(torch.neg)')}")
    assert (done.outcomes, list(done.rows)) == ({"passed": 1}, ["test_own"])


CAUSAL = """
import pytest, sys

SHAPE = "--page_size 4 --batch_size 1 --num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 16 --causal --s_qo 3"

@pytest.mark.perf_cases("BatchPrefillWithPagedKVCacheWrapper", f"{SHAPE} --s_kv 5", f"{SHAPE} --s_kv 3")
def test_it(perf, case):
    perf(case)
    assert not {"torch._dynamo", "flashinfer", "hypothesis"} & set(sys.modules)
"""


def test_a_causal_case_on_a_cpu_does_not_pay_for_torchs_compiler_nor_for_hypothesis(session):
    assert session("--perf-backends=torch", process=True, test_causal=CAUSAL).outcomes == {"passed": 2}


BELOW = """
import torch

def test_wrong(perf):
    perf.time(torch.neg, torch.ones(8), reference=torch.ones(8))
"""


@pytest.mark.parametrize("folder", ["", "sub", "sub/deep er"])
def test_run_it_again_works_from_where_pytest_was_started(pytester, monkeypatch, folder):
    pytester.makeini("[pytest]")
    there = pytester.mkdir("sub") / "deep er"
    there.mkdir()
    (there / "test_below.py").write_text(BELOW)
    monkeypatch.chdir(pytester.path / folder)
    done = pytester.runpytest(*QUICK, there / "test_below.py", "-W", "ignore")
    [[_, test]] = [shlex.split(line) for line in done.outlines if line.startswith("pytest ")]
    pytester.runpytest(*QUICK, test, "--collect-only", "-q").stdout.fnmatch_lines(["1 test collected*"])


def test_what_runs_is_told_every_half_minute_also_within_a_case(monkeypatch):
    words, clock = io.StringIO(), iter([0.0, 40.0, 240.0, 241.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    heartbeat = progress.Heartbeat(words, 3)
    beats = iter([
        lambda: heartbeat.pytest_runtest_logstart("test_own.py::test_own[1]"),
        lambda: builds._told[-1]("batch_decode"),
        lambda: heartbeat.pytest_runtest_logstart("test_own.py::test_own[2]"),
    ])  # fmt: skip

    class Ended:
        def wait(self, seconds):
            assert seconds == 30
            happens = next(beats, None)
            return happens is None or happens()

        set = staticmethod(lambda: None)

    heartbeat._ended = Ended()
    heartbeat.beat()
    heartbeat.pytest_sessionfinish()
    assert words.getvalue().split("\n")[1::2] == [
        "case 1 of 3: test_own.py::test_own[1]",
        "case 1 of 3: test_own.py::test_own[1], compiling FlashInfer's module batch_decode",
        "case 2 of 3, about 8 min left: test_own.py::test_own[2]",
    ]
    assert not builds._told


@pytest.mark.more
@pytest.mark.parametrize(("option", "told"), [("-rA", True), ("-v", True), ("-q", False)])
def test_a_session_tells_it_while_a_test_is_captured(session, option, told):
    often = "from pytest_flashinfer_perf.session import progress\nprogress.EACH_S = 0.1"
    slow = "import time\ndef test_slow(perf): perf.time(int); time.sleep(1)"
    done = session(option, process=True, conftest=often, test_own=slow)
    assert ("\ncase 1 of 1: test_own.py::test_slow\n" in done.err) is told


ITS, OURS = "Name (time in", "= flashinfer-perf ="


@pytest.mark.parametrize(
    ("options", "tables"),
    [
        (["-k", "own"], [OURS]),
        (["-k", "own", "--benchmark-verbose"], [ITS, OURS]),
        ([], [ITS, OURS]),
        (["-k", "plain"], [ITS]),
        (["--benchmark-quiet"], [OURS]),
    ],
)
def test_our_table_is_the_last_and_alone_where_all_rows_are_ours(session, options, tables):
    done = session(*options, test_both=f"{OWN}def test_plain(benchmark): benchmark.pedantic(len, args=[[]])\n")
    assert done.outcomes == ({"passed": 1, "deselected": 1} if "-k" in options else {"passed": 2})
    assert [table for line in done.out.splitlines() for table in (ITS, OURS) if table in line] == tables
