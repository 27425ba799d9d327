"""What cannot be used is one sentence, and the same exit code from every command."""

import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from declared import here
from made import row, saved

import pytest_flashinfer_perf
from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.errors import FlashinferPerfError

NOTHING = None
FAULTS = {
    "missing": NOTHING,
    "empty": "",
    "torn": '{"benchmarks": [',
    "not text": b"\xff\xfe\x00",
    "not a run": "{}",
    "a list": "[1]",
    "rows that are none": '{"flashinfer_perf": {"schema": 2}, "benchmarks": [{"name": 1}], "machine_info": {}}',
}
COMPARE = "compare --base good.json --head good.json"
COMMANDS = here(
    [
        "compare --base bad.json --head good.json",
        "compare --base good.json --head bad.json",
        "merge good.json bad.json -o merged.json",
        "report good.json bad.json -o report.html",
        "report --markdown bad.json",
    ]
)


@pytest.fixture
def refused(capsys):
    def run(words, *named):
        assert cli.main(list(map(str, words))) == 2
        said = capsys.readouterr()
        assert said.err.startswith(f"flashinfer-perf {words[0]}: ")
        assert "Traceback" not in said.err
        for one in named:
            assert str(one) in said.err
        assert not said.out

    return run


@pytest.fixture
def good(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return saved(tmp_path / "good.json", row())


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_cannot_be_used_is_named_by_every_command(fault, command, refused):
    content = FAULTS[fault]
    if isinstance(content, bytes):
        Path("bad.json").write_bytes(content)
    elif content is not NOTHING:
        Path("bad.json").write_text(content)
    refused(command.split(), "bad.json")


@pytest.mark.usefixtures("good")
@pytest.mark.parametrize("command", here([f"{COMPARE} --perf-config mine.toml", "watch . --perf-config mine.toml"]))
@pytest.mark.parametrize("content", [NOTHING, "[", "[threshold]\n", '[thresholds]\n"*" = { slowr = "2%" }\n'])
def test_a_settings_file_that_cannot_be_used_is_named(content, command, refused):
    if content is not NOTHING:
        Path("mine.toml").write_text(content)
    refused(command.split(), "mine.toml")


@pytest.mark.usefixtures("good")
def test_names_that_nobody_has_are_refused_alike(refused):
    refused(["list", "nope"], "unknown name 'nope'")
    for line in here([f"{COMPARE} --perf-gate-allow=nope"]):
        refused(line.split(), "unknown name 'nope'")


REFUSED = (
    *("--perf-config=nope.toml", "--perf-config=mistyped.toml", "--perf-only=nope.txt"),
    *("--perf-case=--routine nope", "--perf-backends=nope", "--perf-device=cuda:99", "--perf-gate-allow=nope"),
    *("--perf-nope=nope.json", *here(["--perf-model=nope", "--perf-trace-set=nope", "--perf-testlist=nope.txt"])),
    *here(["--perf-plant=nope.json"]),
)
MISTYPED = '[thresholds]\n"*" = { slowr = "2%" }\n'


@pytest.mark.parametrize("option", REFUSED)
def test_a_run_of_pytest_ends_with_its_own_code(option, session, pytester):
    """Also where only a gate would use the option, and there is none."""
    (pytester.path / "mistyped.toml").write_text(MISTYPED)
    done = session(option, "test_mine.py", test_mine="def test_it(perf): perf.time(sum, (1,))", quick=False)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains("ERROR: *")
    assert "INTERNALERROR" not in done.out


def test_the_package_is_a_command():
    done = subprocess.run([sys.executable, "-m", pytest_flashinfer_perf.__name__, "--version"], capture_output=True)  # noqa: PLW1510
    assert done.stdout.startswith(b"pytest-flashinfer-perf ")


def test_a_script_is_told_of_no_option():
    with pytest.raises(FlashinferPerfError, match=r"^there is no device xpu, this machine has cpu"):
        pytest_flashinfer_perf.measure(lambda: torch.ones(8), device="xpu")


OWN = """
import pytest, torch

def test_named(perf, benchmark):
    perf.time(torch.neg, torch.ones(8))
    benchmark.extra_info |= {"case": "another", "status": "fine", "own": float("nan"), "beside": 7}
"""
STRICT = {"parse_constant": lambda name: pytest.fail(f"{name} is no JSON")}


@pytest.mark.parametrize("workers", [(), ("-n1",)])
def test_a_row_keeps_its_name_and_its_file_is_json(session, workers):
    done = session("-rA", *workers, test_named=OWN)
    assert "PASSED 1.000 ms test_named.py::test_named" in done.out
    [row] = json.loads((done.folder / "run.json").read_text(), **STRICT)["benchmarks"]
    assert row["extra_info"]["case"].endswith("::test_named")
    assert row["extra_info"]["status"] == "ok"
    assert (row["extra_info"]["own"], row["extra_info"]["beside"]) == (None, 7)


def test_a_session_that_times_nothing_says_so(session):
    done = session("--benchmark-disable", test_named=OWN)
    done.says("--benchmark-disable: answers were checked, and nothing was timed")


@pytest.mark.parametrize("seconds", ["'abc'", "-1", "True", "float('nan')", "None"])
def test_a_marker_without_a_number_is_one_sentence(session, seconds):
    marker = f"@pytest.mark.benchmark(max_time={seconds})"
    done = session(test_named=OWN.replace("def test", f"{marker}\ndef test"))
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains("ERROR: *::test_named: benchmark(max_time=*) must be a number of seconds")


def test_every_error_has_the_one_base():
    package = pytest_flashinfer_perf
    modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    own = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseException) and kind.__module__.startswith(package.__name__)
    }
    assert own
    assert {kind for kind in own if not issubclass(kind, FlashinferPerfError)} == set()


WRONG = """
import torch

def test_wrong(perf):
    perf.time(torch.neg, torch.ones(8), reference=torch.ones(8))
"""


def test_a_failure_that_has_no_traceback_ends_with_the_line_of_its_test(session):
    """As readers of logs look for it: a path and a number behind a space. The reason in the JSON has no line."""
    done = session(test_own=WRONG)
    assert f"  at test_own.py:{len(WRONG.strip().splitlines())}" in done.out
    told = done.document["flashinfer_perf"]["unmeasured"]
    assert ["at test_own.py" in one["reason"] for one in told] == [False]


def test_a_failure_of_a_test_that_is_made_for_a_routine_names_no_line_of_another_file(session):
    made = "from pytest_flashinfer_perf.plugin import cases\nglobals().update(cases.family_tests('gemm'))\n"
    done = session("--perf-suite=smoke", "--perf-strict-skips=*", "-k", "bmm_bf16 and cudnn", test_made=made)
    assert done.outcomes["failed"]
    assert "  at " not in done.out
