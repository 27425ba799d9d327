"""The gate in a run of pytest: baselines saved and judged, suspects measured again, exit codes."""

import fnmatch
import json

import pytest
from gate_sessions import BUSY, HOSTS, PROGRAM, TOLD, as_told
from made import plain, row, saved

from pytest_flashinfer_perf.kernel_timing import host, instruments
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.host_time import HostTime

QUICK = ("-p", "no:cacheprovider", "--benchmark-quiet", "--perf-iters=5", "--perf-device=cpu")


@pytest.fixture
def session(pytester, monkeypatch, tmp_path):
    """Run pytest on cases that take what is said, in microseconds; a second number is of processes that confirm."""
    monkeypatch.setitem(instruments.INSTRUMENTS, "wall", instruments.INSTRUMENTS["wall"])
    pytester.makeconftest(TOLD)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    pytester.makepyfile(test_told=PROGRAM)
    pytester.makefile(".toml", **{"flashinfer-perf": '[thresholds]\n"*" = { slower = "50%" }\n'})

    def run(*options, plain=False, **cases):
        told = {name: us if isinstance(us, list) else [us] * 2 for name, us in cases.items()}
        (pytester.path / "said.json").write_text(json.dumps({"cases": told, "plain": plain}))
        return pytester.runpytest(*QUICK, *options)

    return run


@pytest.fixture
def baseline(pytester):
    saved(pytester.path / "base.json", as_told("a", 100), as_told("b", 200), machine={})
    return "--perf-gate=base.json"


@pytest.mark.parametrize(
    ("options", "cases", "expected"),
    [
        ((), {"a": 100, "b": 200}, (0, "2 SAME: no slowdown was found")),
        ((), {"a": 30, "b": 200}, (0, "1 FASTER, 1 SAME: no slowdown was found")),
        ((), {"a": 100}, (2, "1 of 2 judged, 1 MISSING, 1 SAME: the comparison is incomplete")),
        (("--perf-gate-allow=missing",), {"a": 100}, (0, "1 of 2 judged, 1 MISSING, 1 SAME: no slowdown was found")),
        ((), {"a": 100, "b": None}, (2, "1 of 2 judged, 1 MISSING, 1 SAME*")),
        ((), {"a": 100, "b": -1}, (1, "1 of 2 judged, 1 MISSING, 1 SAME: something got worse")),
        ((), {"a": 100, "b": 200, "c": 5}, (0, "2 SAME, 1 NEW*")),
        ((), {"a": 100, "b": 200, "c": -1}, (1, "2 of 3 judged, 1 INVALID, 2 SAME: something got worse")),
        (("-k", "not [b]"), {"a": 100, "b": 200}, (2, "1 of 2 judged, 1 MISSING, 1 SAME*")),
        (
            ("-k", "not [b]", "--perf-gate-allow=deselected"),
            {"a": 100, "b": 200},
            (0, "1 of 2 judged, 1 MISSING, 1 SAME*"),
        ),
    ],
)
def test_a_run_is_judged_and_its_exit_code_is_the_verdict(session, baseline, options, cases, expected):
    code, line = expected
    done = session(baseline, *options, **cases)
    assert done.ret == code
    done.stdout.fnmatch_lines([line])


def test_a_case_slower_on_the_host_alone_is_measured_again_there(session, pytester, monkeypatch):
    monkeypatch.setattr(host, "measured", host.measured)
    pytester.makeconftest(TOLD + HOSTS)
    asked = '[thresholds]\n"*" = { slower = "50%", slower_host = "10%" }\n'
    pytester.makefile(".toml", **{"flashinfer-perf": asked})
    (pytester.path / "hosts.json").write_text(json.dumps([500, 500]))
    before = as_told("a", 100)
    before["extra_info"]["host"] = fields.written(
        HostTime(50.0, (49.5, 50.0, 50.5), waits=False, references_us=(20.0,) * 3)
    )
    saved(pytester.path / "base.json", before, machine={})
    done = session("--perf-gate=base.json", a=100)
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*slower-host: slower on the host alone*", "*measured again: +900.00 %, +900.00 %"])


def test_reasons_come_from_the_run(session, baseline):
    done = session(baseline, a=None, b=200)
    done.stdout.fnmatch_lines(["*skipped: in the baseline, not in this run: cannot run here"])
    done = session(baseline, "--deselect=test_told.py::test_it[b]", a=100, b=200)
    done.stdout.fnmatch_lines(["*deselected: in the baseline, not in this run: left out by -k*"])


def test_what_failed_as_expected_is_not_skipped(session, baseline):
    done = session(baseline, a=0, b=200)
    done.stdout.fnmatch_lines(["*xfailed: in the baseline, not in this run: a known bug"])


def test_a_suspect_is_confirmed_and_shown_once_and_github_is_told(session, baseline, pytester, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary.md"))
    done = session(baseline, "--benchmark-json=run.json", a=[300, 290], b=200)
    assert done.ret == 1
    done.stdout.fnmatch_lines(["1 SLOWER, 1 SAME: something got worse"])
    assert "measured again: +190.00 %, +190.00 %" in " ".join(done.stdout.str().split())
    done.stdout.fnmatch_lines(["*2 passed in*"])
    written = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert [one["stats"]["median"] for one in written] == pytest.approx([300e-6, 200e-6])
    assert done.stdout.str().count("::test_it[a]") == 2  # in the table, and as SLOWER
    done.stdout.fnmatch_lines(["::error title=SLOWER test_told.py%3A%3Atest_it[[]a[]],file=test_told.py,line=*::*"])
    assert "| SLOWER |" in (pytester.path / "summary.md").read_text()


def test_only_a_change_like_the_first_one_is_confirmed_where_it_is_measured_again(session, baseline):
    done = session(baseline, a=[1000, 160], b=[600, 200])
    assert done.ret == 2, "six tenths slower, and not ten times"
    done.stdout.fnmatch_lines(["0 of 2 judged, 2 AMBIGUOUS: no case could be judged, which is no pass"])
    assert "not confirmed, measured again: +60.00 %" in " ".join(done.stdout.str().split())


@pytest.mark.parametrize(
    "case",
    [
        ((0.0, 0.0), 1, "*measured again: +200.00 %, +200.00 %"),
        ((0.9, 0.0), 2, "*busy: this machine was busy: load 6 on * cores, in this run of *"),
        ((0.0, 0.9), 0, "*busy: not confirmed, measured again while this machine was busy: load 6 on * cores, *"),
    ],
)
def test_a_busy_machine_neither_accuses_nor_confirms(session, baseline, pytester, case):
    waited, code, line = case
    pytester.makeconftest(TOLD + BUSY)
    (pytester.path / "waited.json").write_text(json.dumps(waited))
    done = session(baseline, "--benchmark-json=run.json", a=300, b=200)
    assert done.ret == code
    assert fnmatch.fnmatch(" ".join(done.stdout.str().split()), f"{line}*")
    written = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert [one["extra_info"]["status"] for one in written] == ["noisy" if waited[0] else "ok"] * 2


def test_a_suspect_that_cannot_be_measured_again_stays_one_and_others_are_confirmed(session, baseline):
    done = session(baseline, a=[300, -1], b=[400, 390])
    assert done.ret == 1
    said = " ".join(done.stdout.str().split())
    assert "not measured again: one of its processes has no such time of it" in said
    assert "measured again: +95.00 %, +95.00 %" in said


def test_a_new_case_with_a_wrong_answer_is_listed_and_the_baseline_may_have_it_too(session, baseline, pytester):
    done = session(baseline, a=100, b=200, c=-1)
    shown = ["INVALID (1)", "  test_told.py::test_it[[]c]", "*failed: this session: *wrong answer*"]
    done.stdout.fnmatch_lines(shown)
    wrong = {"case": "test_told.py::test_it[c]", "outcome": "failed", "reason": "wrong answer"}
    saved(pytester.path / "base.json", as_told("a", 100), machine={}, unmeasured=[wrong])
    done = session(baseline, a=100, c=-1)
    assert done.ret == 1
    assert "it fails in the baseline too" in " ".join(done.stdout.str().split())


def test_a_run_that_stopped_measures_no_suspect_again(session, baseline):
    done = session(baseline, "-x", a=300, b=-1, c=1)
    assert done.ret == 1
    assert "measured again" not in done.stdout.str()


def test_plain_benchmarks_are_judged_beside_cases(session):
    assert session("--perf-save-baseline=both", plain=True, a=100).ret == 0
    done = session("--perf-gate=both", "--perf-gate-allow=missing", a=100)
    done.stdout.fnmatch_lines(["MISSING (1)", "  test_told.py::test_plain"])
    done = session("--perf-gate=both", plain=True, a=100)
    done.stdout.fnmatch_lines(["*::test_plain*"])
    assert "MISSING" not in done.stdout.str()


def test_a_session_of_plain_benchmarks_needs_no_torch(pytester):
    program = (
        "import sys\ndef test_x(benchmark):\n  benchmark.pedantic(int, rounds=9)\n  assert 'torch' not in sys.modules"
    )
    pytester.makepyfile(program)
    pytester.maketxtfile(only="test_a_session_of_plain_benchmarks_needs_no_torch.py::test_x")
    saved(pytester.path / "base.json", plain(), machine={})
    gate = ("--perf-gate=base.json", "--perf-gate-allow=missing")
    options = ("-p", "no:cacheprovider", "--benchmark-quiet", "--perf-only=only.txt", *gate)
    done = pytester.runpytest_subprocess(*options)
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["REFUSED: nothing was compared*", "NEW (1)"])


def test_a_baseline_is_saved_with_its_samples_and_is_a_file_a_folder_or_a_name(session, pytester):
    assert session("--perf-save-baseline=main", a=100, b=200).ret == 0
    [stored] = (pytester.path / ".benchmarks").rglob("*.json")
    assert "data" in json.loads(stored.read_text())["benchmarks"][0]["stats"]
    for name in (stored, stored.parent, "main"):
        assert session(f"--perf-gate={name}", a=100, b=200).ret == 0


@pytest.mark.parametrize(
    ("option", "code", "sentence"),
    [
        ("--perf-gate=mian", 2, "--perf-gate: mian: no such file or folder, and no such name in *.benchmarks"),
        ("--perf-gate=", 2, "--perf-gate: the name of a run is empty: is a shell variable not set?"),
        ("--perf-gate=said.json", 2, "--perf-gate: said.json: not a file of pytest-benchmark*"),
        ("--perf-gate-allow=gpus", 4, "*unknown name 'gpus', did you mean gpu?*"),
        ("--perf-save-baseline=a/b", 4, "*must be letters, digits and*"),
    ],
)
def test_what_cannot_be_judged_is_said_before_anything_is_measured(session, baseline, option, code, sentence):
    done = session(baseline, option, a=100, b=200)
    assert done.ret == code
    shown = [*done.outlines, *done.errlines]
    pytest.LineMatcher(shown).fnmatch_lines([f"*{sentence}*"])
    assert "passed" not in done.stdout.str()


def test_wrong_thresholds_are_an_error(session, baseline, pytester):
    pytester.makefile(".toml", **{"flashinfer-perf": '[thresholds]\n"*" = { slower = 50 }\n'})
    done = session(baseline, a=100)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*slower: must be a percentage above zero*"])


def test_a_baseline_of_another_gpu_is_refused(session, pytester):
    saved(pytester.path / "gpu.json", row("test_told.py::test_it[a]"), machine={"driver": None})
    done = session("--perf-gate=gpu.json", a=100)
    assert done.ret == 2
    done.stdout.fnmatch_lines(["INVALID (1)", "*gpu: GPU-0 in the baseline, none here*"])


@pytest.mark.parametrize("options", ["--benchmark-disable", "--perf-refcheck=only", "--benchmark-skip", "-n1"])
def test_nothing_to_save_is_no_success(session, pytester, options):
    seen = session("--perf-save-baseline=empty", options, "-W", "ignore", a=None if options == "-n1" else 100)
    assert seen.ret == 2
    seen.stdout.fnmatch_lines(["--perf-save-baseline: nothing was measured, nothing is saved"])
    assert not list(pytester.path.rglob("*_empty.json"))


def test_nothing_measured_saves_nothing_and_judges_nothing(session, baseline):
    done = session("--perf-save-baseline=empty", "-W", "ignore", a=None)
    assert done.ret == 2
    done.stdout.fnmatch_lines(["--perf-save-baseline: nothing was measured, nothing is saved"])
    done = session(baseline, "--perf-gate-allow=missing", a=None, b=None)
    assert done.ret == 2
    done.stdout.fnmatch_lines(["REFUSED: nothing was compared*"])
    assert session(baseline, "-k", "nothing", a=100).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_collecting_judges_nothing(session, baseline):
    done = session(baseline, "--collect-only", a=100)
    assert done.ret == 0
    assert "flashinfer-perf gate" not in done.stdout.str()


def test_saving_is_pytest_benchmarks(session):
    done = session("--perf-save-baseline=main", "--benchmark-save=other", a=100)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--perf-save-baseline is --benchmark-save with samples: use one of them"])


def test_only_the_named_tests_run(session, pytester):
    (pytester.path / "only.txt").write_text("test_told.py::test_it[b]\nelsewhere.py::test_x\n")
    session("--perf-only=only.txt", a=100, b=200).assert_outcomes(passed=1, deselected=1)
    assert session("--perf-only=none.txt", a=100).ret == pytest.ExitCode.USAGE_ERROR
