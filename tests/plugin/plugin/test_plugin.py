"""The plugin beside pytest-benchmark, xdist and other people's tests: what `perf` is, and what it leaves alone."""

import json
import shlex
import sys
import time

import pytest
import torch
from decode_cases import QUICK, rows

from pytest_flashinfer_perf.session import progress


@pytest.mark.parametrize(
    ("option", "outcome", "recorded"),
    [
        ("--benchmark-only", {"passed": 1, "skipped": 1}, 1),
        ("--benchmark-skip", {"passed": 1, "skipped": 1}, 0),
        ("--benchmark-disable", {"passed": 2}, 0),
        ("--dist=load", {"passed": 2}, 1),  # without workers: pytest-benchmark would be off
    ],
)
def test_options_of_pytest_benchmark_and_xdist_keep_working(pytester, option, outcome, recorded):
    pytester.makepyfile(
        """
        import torch
        def test_own(perf): perf.time(torch.neg, torch.ones(8))
        def test_plain(): pass
        """
    )
    result = pytester.runpytest(*QUICK, option, "--benchmark-json=run.json", "-W", "ignore")
    result.assert_outcomes(**outcome)
    written = pytester.path / "run.json"
    assert (len(rows(pytester)) if written.exists() and written.stat().st_size else 0) == recorded


def test_a_row_that_pytest_benchmark_would_lose_fails_its_test(suite, monkeypatch):
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    done = suite.runpytest(*QUICK, "--perf-backends=torch", "-W", "ignore")
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines(["*pytest-benchmark is off and would lose this row: unset PYTEST_XDIST_WORKER, *"])


def test_without_pytest_benchmark_there_are_no_rows_and_it_is_said(suite):
    done = suite.runpytest(*QUICK, "--perf-backends=torch", "-p", "no:benchmark")
    assert done.ret != 0
    done.stderr.fnmatch_lines(["ERROR: rows are pytest-benchmark's: leave out -p no:benchmark"])


def test_saving_comparing_and_histograms_keep_working(suite):
    first = suite.runpytest(*QUICK, "--perf-backends=torch", "--benchmark-autosave", "--benchmark-storage=file://store")
    first.assert_outcomes(passed=2)
    again = suite.runpytest(*QUICK, "--perf-backends=torch", "--benchmark-compare", "--benchmark-storage=file://store")
    again.assert_outcomes(passed=2)
    again.stderr.fnmatch_lines(["*Comparing against benchmarks from: *"])
    assert "machine_info is different" not in again.stdout.str() + again.stderr.str()
    saved = str(next((suite.path / "store").rglob("*.json")))
    compared = suite.run(sys.executable, "-m", "pytest_benchmark", "compare", saved)
    assert compared.ret == 0
    compared.stdout.fnmatch_lines(["*test_decode[[]b2-s16-h4-kv2-d16-p4-torch]*"])


@pytest.mark.parametrize("of_project", [False, True])
def test_the_machine_is_described_once_and_before_cases_run(pytester, monkeypatch, of_project):
    """py-cpuinfo waits for a process of its own, 1.1 s on one machine: while cases are collected, not at the end."""
    events = []

    def described():
        time.sleep(0.05)
        events.append("described")
        return {"brand_raw": "a CPU", "hz_actual": [1, 0]}

    monkeypatch.setattr("cpuinfo.get_cpu_info", described)
    monkeypatch.setattr(torch, "flashinfer_perf_events", events, raising=False)
    hook = "def pytest_benchmark_generate_machine_info(): return {'cpu': {'brand_raw': 'known'}}"
    pytester.makeconftest(hook if of_project else "")
    pytester.makepyfile(
        """
        import torch
        def test_own(perf):
            torch.flashinfer_perf_events.append("case")
            perf.time(torch.neg, torch.ones(8))
        """
    )
    pytester.runpytest(*QUICK, "--perf-device=cpu", "--benchmark-json=run.json").assert_outcomes(passed=1)
    cpu = json.loads((pytester.path / "run.json").read_text())["machine_info"]["cpu"]
    expected = (["case"], {"brand_raw": "known"}) if of_project else (["described", "case"], {"brand_raw": "a CPU"})
    assert (events, cpu) == expected


def test_a_plain_benchmark_beside_ours_is_left_alone(pytester):
    pytester.makepyfile(
        """
        def test_plain(benchmark): assert benchmark.pedantic(lambda: 7, rounds=3) == 7
        """
    )
    result = pytester.runpytest("--benchmark-json=run.json")
    result.assert_outcomes(passed=1)
    whole = json.loads((pytester.path / "run.json").read_text())
    assert "flashinfer_perf" not in whole
    assert "torch" not in whole["machine_info"]
    assert whole["benchmarks"][0]["options"]["timer"] == "perf_counter"
    assert "= flashinfer-perf =" not in result.stdout.str()


def test_a_fixture_measures_once_per_test(pytester):
    pytester.makepyfile(
        """
        import torch
        def test_twice(perf):
            perf.time(torch.neg, torch.ones(8))
            perf.time(torch.neg, torch.ones(8))
        """
    )
    result = pytester.runpytest(*QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*perf records one row per test: parametrize the test to measure more*"])


@pytest.mark.parametrize("option", ["-v", "--benchmark-disable", "--perf-refcheck=only", "--perf-fuzz"])
def test_a_test_that_measures_nothing_is_no_test_that_has_passed(pytester, option):
    """Where it says why not, that counts."""
    pytester.makepyfile(
        """
        import pytest
        def test_forgets(perf): pass
        def test_skips(perf): pytest.skip("not here")
        def test_wants(perf): pytest.importorskip("no_such_module")
        @pytest.mark.xfail(strict=True)
        def test_known(perf): pass
        """
    )
    result = pytester.runpytest(*QUICK, option, "-W", "error")
    result.assert_outcomes(failed=1, skipped=2, xfailed=1)
    result.stdout.fnmatch_lines(
        ["nothing was measured: call perf(case) or perf.time(...), or pytest.skip(reason), or *"]
    )


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
ACTIVE = """
class Active:
    is_codspeed_enabled = True

def pytest_configure(config):
    config.pluginmanager.register(Active(), "codspeed_plugin")
"""


@pytest.mark.parametrize("conftest", ["", ACTIVE])
def test_somebody_elses_perf_is_left_alone(pytester, conftest):
    """Who defines it decides, not its name: nothing is measured, and no device is looked for."""
    pytester.makeconftest(conftest)
    pytester.makepyfile(NOT_OURS)
    done = pytester.runpytest(*QUICK, "--perf-device=cuda:7", "--benchmark-json=run.json")
    done.assert_outcomes(passed=4)
    assert "flashinfer-perf ====" not in done.stdout.str()
    assert "flashinfer_perf" not in json.loads((pytester.path / "run.json").read_text())


def test_somebody_elses_perf_does_not_import_torch(pytester):
    pytester.makepyfile(NOT_OURS + "\ndef test_torch(): assert 'torch' not in sys.modules\n")
    pytester.runpytest_subprocess(*QUICK, "-p", "no:hypothesispytest").assert_outcomes(passed=5)


def test_a_fixture_that_is_made_of_ours_measures(pytester):
    pytester.makepyfile(
        """
        import pytest, torch

        @pytest.fixture
        def perf(perf): return lambda fn: perf.time(fn, torch.ones(8))

        def test_own(perf): perf(torch.neg)
        """
    )
    pytester.runpytest(*QUICK, "--benchmark-json=run.json").assert_outcomes(passed=1)
    assert [row["name"] for row in rows(pytester)] == ["test_own"]


def test_perf_is_asked_for_as_an_argument(pytester):
    pytester.makepyfile(
        """
        import torch
        def test_dynamic(request): request.getfixturevalue("perf")
        def test_argument(perf): perf.time(torch.neg, torch.ones(8))
        """
    )
    alone = pytester.runpytest(*QUICK, "-W", "ignore", "-k", "dynamic")
    alone.assert_outcomes(failed=1, deselected=1)
    result = pytester.runpytest(*QUICK, "-W", "ignore")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*perf must be an argument of the test itself*"])


def test_benchmark_is_not_called_beside_perf(pytester):
    pytester.makepyfile("def test_both(perf, benchmark): benchmark(lambda: 1)")
    result = pytester.runpytest(*QUICK)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*records through perf(...) or perf.time(...), not benchmark(...)*"])


def test_a_causal_case_on_a_cpu_does_not_pay_for_torchs_compiler_nor_for_hypothesis(pytester):
    pytester.makeconftest("""
        import sys

        def pytest_unconfigure():
            assert "torch" in sys.modules
            assert not {"torch._dynamo", "flashinfer", "hypothesis"} & set(sys.modules)
    """)
    pytester.makepyfile("""
        import pytest

        SHAPE = "--page_size 4 --batch_size 1 --num_qo_heads 2 --num_kv_heads 1 --head_dim_qk 16 --causal --s_qo 3"

        @pytest.mark.perf_cases("BatchPrefillWithPagedKVCacheWrapper", f"{SHAPE} --s_kv 5", f"{SHAPE} --s_kv 3")
        def test_it(perf, case):
            perf(case)
    """)
    done = pytester.runpytest_subprocess("--perf-device=cpu", "--perf-iters=1", "--perf-backends=torch")
    done.assert_outcomes(passed=2)
    assert "Error" not in done.stderr.str()


def test_an_unrelated_project_does_not_pay_for_the_plugin(pytester):
    pytester.makeconftest(
        """
        import sys

        def pytest_unconfigure():
            assert not {"torch", "flashinfer", "hypothesis.strategies"} & set(sys.modules)
        """
    )
    pytester.makepyfile("def test_one(): pass")
    for arguments in (["--collect-only"], []):
        result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", *arguments)
        assert result.ret == 0
        assert "Error" not in result.stderr.str()


BELOW = """
import os, torch

def test_wrong(perf):
    perf.time(torch.neg, torch.ones(8), reference=torch.ones(8))

def test_dies(perf):
    os._exit(3)
"""


@pytest.mark.parametrize(
    ("folder", "options"), [("", ["-k", "wrong"]), ("sub", ["-k", "wrong"]), ("sub/deep er", ["-n1"])]
)
def test_run_it_again_works_from_where_pytest_was_started(pytester, monkeypatch, folder, options):
    pytester.makeini("[pytest]\nperf_gpu_workers = true\n")
    there = pytester.mkdir("sub") / "deep er"
    there.mkdir()
    (there / "test_below.py").write_text(BELOW)
    monkeypatch.chdir(pytester.path / folder)
    done = pytester.runpytest(*QUICK, *options, there / "test_below.py", "-W", "ignore")
    commands = [shlex.split(line) for line in done.outlines if line.startswith("pytest ")]
    assert len(commands) == done.parseoutcomes()["failed"] == (2 if "-n1" in options else 1)
    for _, test in commands:
        pytester.runpytest(*QUICK, test, "--collect-only", "-q").stdout.fnmatch_lines(["1 test collected*"])


@pytest.mark.parametrize(("options", "told"), [((), True), (("-n1",), True), (("-v",), False), (("-q",), False)])
def test_a_long_run_says_which_case_begins_and_how_long_the_rest_may_take(pytester, monkeypatch, options, told):
    monkeypatch.setattr(progress, "EACH_S", 0)
    pytester.makepyfile("""
        import pytest, torch

        @pytest.mark.parametrize("n", [1, 2, 3])
        def test_own(perf, n): perf.time(torch.neg, torch.ones(n))
    """)
    done = pytester.runpytest(*QUICK, *options)
    done.assert_outcomes(passed=3)
    lines = [line for line in done.outlines if line.startswith("case ")]
    name = "test_a_long_run_says_which_case_begins_and_how_long_the_rest_may_take.py::test_own"
    expected = [f"case {n} of 3, less than a minute left: {name}[{n}]" for n in (2, 3)]
    assert lines == (expected if told else [])


TOLD = """
from pytest_flashinfer_perf.printing import write_lines

def pytest_terminal_summary(terminalreporter):
    write_lines(terminalreporter, ["  fa2  21.6 us  noisy", "1 SLOWER, 2 FASTER: see test_noisy", "x WRONG", "NOISY"])
"""


@pytest.mark.parametrize("colour", ["yes", "no"])
def test_verdicts_and_statuses_have_a_colour_where_pytest_has_any(pytester, colour):
    pytester.makeconftest(TOLD)
    shown = pytester.runpytest(f"--color={colour}").stdout.str()
    lines = [
        "  fa2  21.6 us  {y}noisy{0}",
        "1 {r}SLOWER{0}, 2 {g}FASTER{0}: see test_noisy",
        "x {r}WRONG{0}",
        "{y}NOISY{0}",
    ]
    codes = {"y": "\x1b[33m\x1b[1m", "r": "\x1b[31m\x1b[1m", "g": "\x1b[32m\x1b[1m"}
    codes = codes if colour == "yes" else dict.fromkeys(codes, "")
    assert "\n".join(line.format("\x1b[0m" if colour == "yes" else "", **codes) for line in lines) in shown


BOTH = """
import torch
def test_own(perf): perf.time(torch.neg, torch.ones(8))
def test_plain(benchmark): benchmark.pedantic(len, args=[[]])
"""
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
def test_our_table_is_the_last_and_alone_where_all_rows_are_ours(pytester, options, tables):
    pytester.makepyfile(BOTH)
    quick = [option for option in QUICK if option != "--benchmark-quiet"]
    done = pytester.runpytest(*quick, *options)
    done.assert_outcomes(passed=1 if "-k" in options else 2, deselected=1 if "-k" in options else 0)
    assert [table for line in done.outlines for table in (ITS, OURS) if table in line] == tables
