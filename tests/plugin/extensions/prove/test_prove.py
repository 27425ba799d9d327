"""`flashinfer-perf prove`: extra work behind timed calls, and processes with and without it in turns."""

import json
import re
import shlex
import sys

import pytest
import stand_in_pytest

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.prove import planting
from pytest_flashinfer_perf.rows import run_file

QUICK = ("--import-mode=importlib", "-p", "no:cacheprovider", "--perf-iters=3", "--perf-device=cpu")
LINE = "--routine bmm_fp8 --backends torch --batch_size 1 --m 4 --n 16 --k 16"
OWN = """
import torch

def test_own(perf):
    perf.time(torch.neg, torch.ones(8), reference=-torch.ones(8))

def test_other(perf):
    perf.time(torch.neg, torch.ones(8))

def test_plain(benchmark):
    benchmark.pedantic(lambda: None, rounds=3)
"""


@pytest.fixture
def measured(pytester):
    """Rows by test id, of a line of a testlist and of tests of one's own, or of the suite's case."""
    pytester.makefile(".txt", lines=f"{LINE}\n")
    pytester.makepyfile(test_own=OWN)

    def measured(*arguments):
        done = pytester.runpytest(*arguments, *QUICK, "--benchmark-json=run.json")
        assert done.ret == 0
        return {row.fullname: row for row in run_file.read_all([pytester.path / "run.json"])[0].rows}

    measured.path = pytester.path
    return measured


@pytest.mark.parametrize("arguments", [("lines.txt", "test_own.py"), (f"--perf-case={LINE}",)], ids=["own", "suite"])
def test_timed_calls_are_followed_by_the_work_that_is_planted(measured, arguments):
    before = measured(*arguments)
    planted = {test: 0.02 for test in before if not test.endswith("test_other")}
    planting.write(measured.path / "plants.json", planted)
    after = measured(*arguments, "--perf-plant=plants.json")
    assert set(after) == set(before)
    seen = {test: row.parts.get("planted_us") for test, row in after.items()}
    assert [test for test, us in seen.items() if us is None] == [
        test for test in before if test.endswith(("test_other", "test_plain"))
    ]
    assert all(us == pytest.approx(20_000) for us in seen.values() if us is not None)
    assert {row.parts.get("planted_us") for row in before.values()} == {None}


@pytest.mark.more
def test_planted_work_takes_its_time(measured):
    planting.write(measured.path / "plants.json", {"test_own.py::test_own": 0.02})
    assert measured("test_own.py", "--perf-plant=plants.json")["test_own.py::test_own"].median >= 0.02


@pytest.mark.parametrize(("asked", "added"), [(100e-6, 100e-6), (2e-6, 2e-6), (30e-9, 1.4e-6)])
def test_a_spinning_kernel_adds_what_is_asked_and_at_least_its_launch(asked, added):
    spin = planting.Spin(launch=1.4e-6, per_cycle=0.5e-9)
    assert spin.lasting(asked).seconds == pytest.approx(added, abs=1e-9)


@pytest.fixture
def prove(pytester, monkeypatch, tmp_path, capsys):
    """Exit code, standard output and standard error of the command, of two cases that take 1 ms and 2 ms."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (pytester.path / "fake.py").write_text(stand_in_pytest.REPORTS)
    (pytester.path / "level").write_text('{"a": 1000, "b": 2000}')
    python = f"--python={shlex.quote(sys.executable)} -S fake.py"

    def prove(*own, pytests=()):
        code = cli.main(["prove", python, *own, "--", *pytests])
        return (code, *capsys.readouterr())

    return prove


def test_processes_are_measured_in_turns_and_judged_against_each_other(prove, pytester):
    code, shown, told = prove("--processes=3", "--share=50%", "--output=out", pytests=["-k", "b"])
    assert code == 0
    turns = ["plain-01", "planted-01", "planted-02", "plain-02", "plain-03", "planted-03"]
    assert re.findall(r"^(\S+): 2 cases in [\d.]+ s$", told, re.MULTILINE) == turns
    assert re.search(r"^own/a\n +0/6 +0/6 +9/9 ", shown, re.MULTILINE)
    assert " ".join(shown.split()).endswith("the gate keeps its promise here")
    plants = json.loads((pytester.path / "out" / "plants.json").read_text())
    assert plants == {"a": pytest.approx(5e-4, rel=1e-3), "b": pytest.approx(1e-3, rel=1e-3)}
    assert (pytester.path / "out" / "proof.txt").read_text() == shown


def test_more_than_the_threshold_is_planted_where_no_share_is_said(prove, pytester):
    (pytester.path / "flashinfer-perf.toml").write_text('[thresholds]\n"own/b" = { slower = "40%" }\n')
    prove("--processes=3", "--output=out")
    plants = json.loads((pytester.path / "out" / "plants.json").read_text())
    assert plants == {"a": pytest.approx(3e-5, rel=1e-3), "b": pytest.approx(1.2e-3, rel=1e-3)}


@pytest.mark.parametrize(
    ("own", "pytests", "sentence"),
    [
        (["--share=0.03"], [], "--share: must be a percentage above zero"),
        (
            ["--output=failed"],
            ["CODE=1"],
            "plain-01: tests failed, so nothing can be concluded: see failed/plain-01.log",
        ),
    ],
)
def test_what_could_not_be_measured_ends_with_2(prove, own, pytests, sentence):
    code, shown, told = prove(*own, pytests=pytests)
    assert (code, shown) == (2, "")
    assert sentence in told
