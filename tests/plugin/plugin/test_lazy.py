"""What a session without a case loads of this package, and that cases are found however late they are collected."""

import json

import pytest
from decode_cases import DECODE, QUICK, TINY

MOST_MODULES = 15
COUNTED = """
import json, pathlib, sys

def pytest_unconfigure():
    own = [name for name in sys.modules if name.partition(".")[0] == "pytest_flashinfer_perf"]
    others = sorted({"torch", "flashinfer", "numpy"} & set(sys.modules))
    pathlib.Path("loaded.json").write_text(json.dumps([sorted(own), others]))
"""
PLAIN = "def test_plain(): pass"


OF_A_WORKER = COUNTED.replace("def pytest_unconfigure():", "def pytest_sessionfinish(session):").replace(
    "    own =", "    if not hasattr(session.config, 'workerinput'): return\n    own ="
)


def loaded(pytester):
    return json.loads((pytester.path / "loaded.json").read_text())


def test_a_session_without_a_case_loads_little(pytester):
    pytester.makeconftest(COUNTED)
    pytester.makepyfile(PLAIN)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    own, others = loaded(pytester)
    assert len(own) <= MOST_MODULES, own
    assert others == []


def test_a_worker_without_a_case_loads_little(pytester):
    pytester.makeconftest(OF_A_WORKER)
    pytester.makepyfile(PLAIN)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "1").assert_outcomes(passed=1)
    own, others = loaded(pytester)
    assert len(own) <= MOST_MODULES, own
    assert others == []


def test_a_mistake_that_a_worker_finds_late_ends_the_run_with_its_sentence(pytester):
    pytester.makepyfile("import pytest\n@pytest.mark.benchmark(max_time='x')\ndef test_late(perf): pass")
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "1")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["ERROR: *::test_late: benchmark(max_time='x') must be a number of seconds"])


def test_a_benchmark_of_somebody_else_s_loads_no_more(pytester):
    pytester.makeconftest(COUNTED)
    pytester.makepyfile("def test_theirs(benchmark): benchmark.pedantic(sum, args=[[1]])")
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--benchmark-json=run.json")
    done.assert_outcomes(passed=1)
    assert len(loaded(pytester)[0]) <= MOST_MODULES
    assert "flashinfer_perf" not in json.loads((pytester.path / "run.json").read_text())


LATE = {
    "a case": f"""
        import pytest

        @pytest.mark.perf_cases({DECODE!r}, {TINY!r} + " --random_actual_seq_len")
        def test_late(perf, case): perf(case)
        """,
    "a call of one's own": """
        import sys
        import torch

        def test_late(perf):
            perf.time(torch.neg, torch.ones(8))
            assert "pytest_flashinfer_perf.routines.attention.decode" not in sys.modules, "it takes 0.1 s"
        """,
}


@pytest.mark.parametrize("late", LATE)
def test_what_is_measured_is_found_behind_other_tests(pytester, monkeypatch, late):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    pytester.makepyfile(test_a=PLAIN, test_b=LATE[late], test_c=PLAIN)
    arguments = ("--benchmark-json=run.json", "-p", "no:cacheprovider", "-k", "torch or plain or late")
    done = pytester.runpytest_subprocess(*arguments, "--benchmark-max-time=0.01")
    outcomes = done.parseoutcomes()
    assert outcomes["passed"] == 3
    document = json.loads((pytester.path / "run.json").read_text())
    [row] = document["benchmarks"]
    assert row["extra_info"]["case"] in (f"{DECODE}/b2-s16-h4-ragged-kv2-d16-p4-torch", "test_b.py::test_late")
    assert len(document["flashinfer_perf"]["unmeasured"]) == outcomes.get("skipped", 0)
    assert "=== flashinfer-perf ===" in done.stdout.str()


def test_a_marker_alone_is_obeyed_behind_other_tests(pytester):
    pytester.makepyfile(
        test_a=PLAIN, test_b="import pytest\n@pytest.mark.requires_sm('90')\ndef test_late(): raise AssertionError"
    )
    done = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rs")
    done.assert_outcomes(passed=1, skipped=1)


@pytest.mark.parametrize("late", LATE)
def test_a_setting_that_is_found_wrong_late_is_one_sentence(session, late):
    done = session(
        "--benchmark-max-time=-1", "-W", "ignore", quick=False, test_a=PLAIN, test_b=LATE[late], test_c=LATE[late]
    )
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains("ERROR: --benchmark-max-time: must be a finite number of seconds of at least 0, got -1.0")
    assert "INTERNALERROR" not in done.out + done.err


def test_settings_are_read_before_anything_is_collected(pytester):
    pytester.makepyfile(PLAIN)
    (pytester.path / "flashinfer-perf.toml").write_text("[tolerance]\n")
    done = pytester.runpytest_subprocess(*QUICK)
    assert done.ret == pytest.ExitCode.USAGE_ERROR


COLLECTING = """
import gc, json, pathlib, pytest
seen = []

def pytest_collectstart(collector):
    seen.append(gc.isenabled())

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    pathlib.Path("garbage.json").write_text(json.dumps([any(seen), gc.isenabled(), gc.get_freeze_count()]))

@pytest.hookimpl(trylast=True)
def pytest_unconfigure():
    pathlib.Path("left.json").write_text(json.dumps(len(gc.get_objects())))
"""


def test_imports_of_a_session_with_cases_are_no_garbage_to_look_for(pytester):
    """Torch's and FlashInfer's half a million objects: each look at all of them takes 0.2 s."""
    pytester.makeconftest(COLLECTING)
    pytester.makefile(".txt", lines=f"--routine {DECODE} --backends torch {TINY}")
    pytester.makepyfile(PLAIN)
    for arguments, is_theirs in ((["lines.txt", *QUICK], False), ([], True)):
        pytester.runpytest_subprocess(*arguments, "-p", "no:cacheprovider")
        while_collecting, while_running, frozen = json.loads((pytester.path / "garbage.json").read_text())
        assert while_running, "it is only off meanwhile"
        assert (while_collecting, frozen > 100_000) == (is_theirs, not is_theirs)
        looked_at_as_it_ends = json.loads((pytester.path / "left.json").read_text())
        assert (looked_at_as_it_ends < 1_000) == (not is_theirs), "a second for half a million"
