"""What a session without a case loads of this package, and that cases are found however late they are collected."""

import json

import pytest
from decode_cases import DECODE, TINY

MOST_MODULES = 15
COUNTED = """
import json, pathlib, sys

def pytest_sessionfinish(session):
    own = [name for name in sys.modules if name.partition(".")[0] == "pytest_flashinfer_perf"]
    others = sorted({"torch", "flashinfer", "numpy", "hypothesis.strategies"} & set(sys.modules))
    where = "worker" if hasattr(session.config, "workerinput") else "here"
    pathlib.Path(f"{where}.json").write_text(json.dumps([sorted(own), others]))
"""
PLAIN = "def test_plain(): pass"
THEIRS = "def test_theirs(benchmark): benchmark.pedantic(sum, args=[[1]])"


@pytest.mark.parametrize(("options", "where"), [((), "here"), (("-n1",), "worker")])
def test_a_session_without_a_case_loads_little(session, pytester, options, where):
    done = session(*options, process=True, quick=False, conftest=COUNTED, test_a=PLAIN, test_b=THEIRS)
    assert done.outcomes == {"passed": 2}
    own, others = json.loads((pytester.path / f"{where}.json").read_text())
    assert len(own) <= MOST_MODULES, own
    assert others == []
    if where == "here":
        assert "flashinfer_perf" not in done.document


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
        """,
}
NEEDS_NO_ROUTINE = """
import sys

def pytest_unconfigure():
    unneeded = {"torch._dynamo", "flashinfer", "pytest_flashinfer_perf.routines.attention.decode"}
    assert not unneeded & set(sys.modules), "decode alone takes 0.1 s"
    assert "torch" in sys.modules
"""


@pytest.mark.parametrize("late", LATE)
def test_what_is_measured_is_found_behind_other_tests(session, monkeypatch, late):
    """A call of one's own imports no routine for that."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    is_own = late != "a case"
    files = {"test_a": PLAIN, "test_b": LATE[late], "test_c": PLAIN, "conftest": NEEDS_NO_ROUTINE if is_own else ""}
    named = ("--benchmark-max-time=0.01", "-k", "torch or plain or late", "-W", "ignore")
    done = session(*named, "-p", "no:cacheprovider", process=is_own, quick=False, **files)
    assert (done.code, done.outcomes["passed"], done.err) == (0, 3, "")
    [row] = done.rows.values()
    assert row["extra_info"]["case"] in (f"{DECODE}/b2-s16-h4-ragged-kv2-d16-p4-torch", "test_b.py::test_late")
    assert len(done.document["flashinfer_perf"]["unmeasured"]) == done.outcomes.get("skipped", 0)
    assert "=== flashinfer-perf ===" in done.out


def test_a_marker_alone_is_obeyed_behind_other_tests(session):
    late = "import pytest\n@pytest.mark.requires_sm('90')\ndef test_late(): raise AssertionError"
    assert session("-W", "ignore", quick=False, test_a=PLAIN, test_b=late).outcomes == {"passed": 1, "skipped": 1}


@pytest.mark.parametrize("late", LATE)
def test_a_setting_that_is_found_wrong_late_is_one_sentence(session, late):
    wrong = ("--benchmark-max-time=-1", "-W", "ignore")
    done = session(*wrong, quick=False, test_a=PLAIN, test_b=LATE[late], test_c=LATE[late])
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains("ERROR: --benchmark-max-time: must be a finite number of seconds of at least 0, got -1.0")
    assert "INTERNALERROR" not in done.out + done.err


def test_settings_are_read_before_anything_is_collected(session, pytester):
    (pytester.path / "flashinfer-perf.toml").write_text("[tolerance]\n")
    done = session(quick=False, test_a="raise AssertionError('collected')")
    assert (done.code, "collected" in done.out) == (pytest.ExitCode.USAGE_ERROR, False)


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


@pytest.mark.parametrize("is_theirs", [False, True])
def test_imports_of_a_session_with_cases_are_no_garbage_to_look_for(session, pytester, is_theirs):
    """Torch's half a million objects: each look at all of them takes 0.2 s."""
    more = {} if is_theirs else {"test_b": LATE["a case"]}
    own = () if is_theirs else ("--perf-backends=torch",)
    session(*own, process=True, quick=not is_theirs, conftest=COLLECTING, test_a=PLAIN, **more)
    while_collecting, while_running, frozen = json.loads((pytester.path / "garbage.json").read_text())
    assert while_running, "it is only off meanwhile"
    assert (while_collecting, frozen > 100_000) == (is_theirs, not is_theirs)
    looked_at_as_it_ends = json.loads((pytester.path / "left.json").read_text())
    assert (looked_at_as_it_ends < 1_000) == (not is_theirs), "a second for half a million"
