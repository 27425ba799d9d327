"""The gate in a run of pytest: baselines saved and judged, suspects measured again, exit codes."""

import json

import gate_sessions
import pytest
from gate_sessions import BUSY, TOLD, as_told
from made import plain, row, saved


@pytest.fixture
def gate(session, pytester, monkeypatch):
    return gate_sessions.prepared(session, pytester, monkeypatch)


@pytest.fixture
def baseline(pytester):
    saved(pytester.path / "base.json", as_told("a", 100), as_told("b", 200), machine={})
    return "--perf-gate=base.json"


MISSING = "*{}: in the baseline, not in this run: {}"
ALLOWED = ("--perf-gate-allow=missing",)
LEFT_OUT = MISSING.format("deselected", "left out by -k*")


@pytest.mark.parametrize(
    ("options", "cases", "expected"),
    [
        ((), {"a": 100, "b": 200}, (0, ["2 SAME: no slowdown was found"])),
        ((), {"a": 30, "b": 200}, (0, ["1 FASTER, 1 SAME: no slowdown was found"])),
        ((), {"a": 100}, (2, ["1 of 2 judged, 1 MISSING, 1 SAME: the comparison is incomplete"])),
        (ALLOWED, {"a": 100}, (0, ["1 of 2 judged, 1 MISSING, 1 SAME: no slowdown was found"])),
        (
            (),
            {"a": None, "b": 200},
            (2, [MISSING.format("skipped", "cannot run here"), "1 of 2 judged, 1 MISSING, 1 SAME*"]),
        ),
        ((), {"a": 0, "b": 200}, (2, [MISSING.format("xfailed", "a known bug"), "1 of 2 judged, 1 MISSING, 1 SAME*"])),
        ((), {"a": 100, "b": -1}, (1, ["1 of 2 judged, 1 MISSING, 1 SAME: something got worse"])),
        ((), {"a": 100, "b": 200, "c": 5}, (0, ["2 SAME, 1 NEW*"])),
        ((), {"a": 100, "b": 200, "c": -1}, (1, ["INVALID (1)", "*::test_it[[]c]", "*failed: this session: *"])),
        (("-k", "not [b]"), {"a": 100, "b": 200}, (2, [LEFT_OUT, "1 of 2 judged, 1 MISSING, 1 SAME*"])),
        (("--deselect=test_told.py::test_it[b]",), {"a": 100, "b": 200}, (2, [LEFT_OUT])),
        (
            ("-k", "not [b]", "--perf-gate-allow=deselected"),
            {"a": 100, "b": 200},
            (0, ["1 of 2 judged, 1 MISSING, 1 SAME*"]),
        ),
        (ALLOWED, {"a": None, "b": None}, (2, ["REFUSED: nothing was compared*"])),
        (("-k", "nothing"), {"a": 100}, (pytest.ExitCode.NO_TESTS_COLLECTED, [])),
    ],
)
def test_a_run_is_judged_and_its_exit_code_is_the_verdict(gate, baseline, options, cases, expected):
    code, lines = expected
    done = gate(baseline, *options, **cases)
    done.says(*lines)
    assert done.code == code


def test_suspects_are_measured_again_and_shown_once_and_extensions_are_told(gate, pytester):
    """One that stays slower, one that gets no slower again, one that gets no time again."""
    told = (pytester.path / "conftest.py").read_text()
    pytester.makeconftest(f"{told}\n\ndef pytest_perf_judged(judgement): return [f'::code {{judgement.exit_code}}']")
    saved(pytester.path / "base.json", *(as_told(name, 100) for name in "abc"), machine={})
    done = gate("--perf-gate=base.json", "-v", a=[300, 290], b=[1000, 160], c=[300, -1])
    assert (done.code, done.outcomes) == (1, {"passed": 3})
    shown = " ".join(done.out.partition("flashinfer-perf gate")[2].split())
    for name, said in (
        ("a", "measured again: +190.00 %, +190.00 %"),
        ("b", "not confirmed, measured again: +60.00 %"),
        ("c", "not measured again: one of its processes has no such time of it"),
    ):
        assert said in shown, name
    assert {name: row["stats"]["median"] for name, row in done.rows.items()} == {
        f"test_it[{name}]": pytest.approx(us * 1e-6) for name, us in {"a": 300, "b": 1000, "c": 300}.items()
    }
    done.says("::code 1")


@pytest.mark.parametrize(
    ("waited", "code", "said"),
    [
        ((0.9, 0.0), 2, "busy: others used this machine: load 6 on "),
        ((0.0, 0.9), 0, "busy: not confirmed, measured again while others used this machine: load 6 on "),
    ],
)
def test_a_busy_machine_neither_accuses_nor_confirms(gate, pytester, waited, code, said):
    pytester.makeconftest(TOLD + BUSY)
    (pytester.path / "waited.json").write_text(json.dumps(waited))
    saved(pytester.path / "base.json", as_told("a", 100), as_told("b", 200), machine={})
    done = gate("--perf-gate=base.json", a=300, b=200)
    assert done.code == code
    assert said in " ".join(done.out.split())
    assert {row["extra_info"]["status"] for row in done.rows.values()} == {"noisy" if waited[0] else "ok"}


def test_a_case_that_fails_in_the_baseline_too_is_said_to(gate, pytester):
    wrong = {"case": "test_told.py::test_it[c]", "outcome": "failed", "reason": "wrong answer"}
    saved(pytester.path / "base.json", as_told("a", 100), machine={}, unmeasured=[wrong])
    done = gate("--perf-gate=base.json", a=100, c=-1)
    assert done.code == 1
    assert "it fails in the baseline too" in " ".join(done.out.split())


def test_a_run_that_stopped_measures_no_suspect_again(gate, baseline):
    done = gate(baseline, "-x", a=300, b=-1, c=1)
    assert (done.code, "measured again" in done.out) == (1, False)


def test_plain_benchmarks_are_judged_beside_cases(gate):
    assert gate("--perf-save-baseline=both", plain=True, a=100).code == 0
    gate("--perf-gate=both", *ALLOWED, a=100).says("MISSING (1)", "  test_told.py::test_plain")
    done = gate("--perf-gate=both", plain=True, a=100)
    done.says("*::test_plain*")
    assert "MISSING" not in done.out


def test_a_session_of_plain_benchmarks_needs_no_torch(session, pytester):
    program = (
        "import sys\ndef test_x(benchmark):\n  benchmark.pedantic(int, rounds=9)\n  assert 'torch' not in sys.modules"
    )
    pytester.maketxtfile(only="test_plain.py::test_x")
    saved(pytester.path / "base.json", plain(), machine={})
    gate = ("--perf-only=only.txt", "--perf-gate=base.json", *ALLOWED)
    done = session(*gate, process=True, quick=False, test_plain=program)
    assert done.outcomes == {"passed": 1}
    done.says("REFUSED: nothing was compared*", "NEW (1)")


def test_a_baseline_is_saved_with_its_samples_and_is_a_file_a_folder_or_a_name(gate, pytester):
    saved = gate("--perf-save-baseline=main", a=100, b=200)
    assert saved.code == 0
    saved.says("baseline main: 2 cases, for --perf-gate=main")
    [stored] = (pytester.path / ".benchmarks").rglob("*.json")
    assert "data" in json.loads(stored.read_text())["benchmarks"][0]["stats"]
    for name in (stored, stored.parent, "main"):
        assert gate(f"--perf-gate={name}", a=100, b=200).code == 0


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--perf-gate=mian", (2, "--perf-gate: mian: no such file or folder, and no such name in *.benchmarks")),
        ("--perf-gate=", (2, "--perf-gate: the name of a run is empty: is a shell variable not set?")),
        ("--perf-gate=said.json", (2, "--perf-gate: said.json: not a file of pytest-benchmark*")),
        ("--perf-gate-allow=gpus", (4, "*unknown name 'gpus', did you mean gpu?*")),
        ("--perf-save-baseline=a/b", (4, "*must be letters, digits and*")),
        ("--perf-config=wrong.toml", (4, "*slower: must be a percentage above zero*")),
        ("--perf-only=none.txt", (4, "*--perf-only: *none.txt*")),
    ],
)
def test_what_cannot_be_judged_is_said_before_anything_is_measured(gate, baseline, pytester, option, expected):
    code, sentence = expected
    (pytester.path / "wrong.toml").write_text('[thresholds]\n"*" = { slower = 50 }\n')
    done = gate(baseline, option, a=100, b=200)
    assert (done.code, done.outcomes.get("passed")) == (code, None)
    pytest.LineMatcher([*done.result.outlines, *done.result.errlines]).fnmatch_lines([f"*{sentence}*"])


def test_a_baseline_of_another_gpu_is_refused(gate, pytester):
    saved(pytester.path / "gpu.json", row("test_told.py::test_it[a]"), machine={"driver": None})
    done = gate("--perf-gate=gpu.json", a=100)
    assert done.code == 2
    done.says("INVALID (1)", "*gpu: GPU-0 in the baseline, none here*")


@pytest.mark.parametrize("option", ["--benchmark-disable", "--perf-refcheck=only", "--benchmark-skip", "-v"])
def test_nothing_to_save_is_no_success(gate, pytester, option):
    done = gate("--perf-save-baseline=empty", option, a=None if option == "-v" else 100)
    assert done.code == 2
    done.says("--perf-save-baseline: nothing was measured, nothing is saved")
    assert not list(pytester.path.rglob("*_empty.json"))


def test_collecting_judges_nothing(gate, baseline):
    done = gate(baseline, "--collect-only", a=100)
    assert (done.code, "flashinfer-perf gate" in done.out) == (0, False)


def test_saving_is_pytest_benchmarks(gate):
    done = gate("--perf-save-baseline=main", "--benchmark-save=other", a=100)
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains("*--perf-save-baseline is --benchmark-save with samples: use one of them")


def test_only_the_named_tests_run(gate, pytester):
    (pytester.path / "only.txt").write_text("test_told.py::test_it[b]\nelsewhere.py::test_x\n")
    assert gate("--perf-only=only.txt", a=100, b=200).outcomes == {"passed": 1, "deselected": 1}
