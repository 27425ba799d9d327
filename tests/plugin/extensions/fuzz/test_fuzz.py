"""Searches: planted bugs are found, shrunk and seen again; a crash is one more finding; what is rejected is counted."""

import itertools
import json
import os
import shlex
import signal
from contextlib import closing
from dataclasses import fields

import planted_backends
import pytest
from hypothesis import find
from hypothesis import settings as hypothesis_settings

from pytest_flashinfer_perf.extensions.fuzz import findings, profiles
from pytest_flashinfer_perf.extensions.fuzz.child import ChildError, ChildSetup, ExampleRunner
from pytest_flashinfer_perf.extensions.fuzz.findings import Outcome
from pytest_flashinfer_perf.extensions.fuzz.fuzzing import Fuzzing, is_finding
from pytest_flashinfer_perf.extensions.fuzz.shape_search import NothingLaunchedError, Search, SearchRun
from pytest_flashinfer_perf.routines import all_routines
from pytest_flashinfer_perf.routines.attention.decode import decode
from pytest_flashinfer_perf.settings.project_file import Quarantined
from pytest_flashinfer_perf.settings.settings import Checking, Measuring, Settings
from pytest_flashinfer_perf.spec import case as cases
from pytest_flashinfer_perf.spec.case import Case, selects
from pytest_flashinfer_perf.spec.routine import Routine, Shape
from pytest_flashinfer_perf.strategies import strategies_for

OWN = (("planted_backends", planted_backends.__file__),)
PLANTED = (r for r in vars(planted_backends).values() if isinstance(r, Routine) and r.name.startswith("planted_"))
ROUTINES = {routine.name: routine for routine in PLANTED}


def home(modules=OWN):
    return ChildSetup(modules, "cpu", Measuring(), Checking(refcheck="only"))


@pytest.fixture(scope="module")
def child():
    with closing(ExampleRunner(home())) as kept:
        yield kept


@pytest.fixture(autouse=True)
def few_examples_the_same_each_time():
    profiles.register()
    perf = hypothesis_settings.get_profile("perf")
    hypothesis_settings.register_profile("acceptance", perf, derandomize=True, database=None, max_examples=80)
    hypothesis_settings.load_profile("acceptance")
    yield
    hypothesis_settings.load_profile("no deadline")


def hunt(routine, child, cpu, tmp_path, *, quarantine=(), **fuzzing):
    return SearchRun(
        Search(routine, "planted"), Fuzzing(findings=tmp_path, **fuzzing), Settings(quarantine=quarantine), cpu, child
    )


RIGHT = Outcome("right")
BUGS = ("ragged_tail", "last_page", "gqa_ratio", "idle_expert")


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_shrunk_and_seen_again(bug, child, cpu, tmp_path):
    routine = ROUTINES[f"planted_{bug}"]
    search = hunt(routine, child, cpu, tmp_path)
    assert search.run()
    assert list(search.findings) == ["wrong"]
    case, outcome = search.findings["wrong"]
    smallest = find(strategies_for(routine), lambda _: True, settings=hypothesis_settings(max_examples=1))
    above = [f.name for f in fields(case.params) if getattr(case.params, f.name) != getattr(smallest, f.name)]
    assert len(above) <= 2, above
    assert case.seed == 0
    printed = findings.describe(case, outcome, {}, steady=True)
    command = shlex.split(printed.pytest)
    assert command[:2] == ["pytest", "--perf-fuzz"]
    again = shlex.split(command[2].removeprefix("--perf-case="))
    assert cases.parse(again, ROUTINES).cases() == [case]
    assert child.attempt(again).kind == "wrong"


def test_a_crash_is_found_attributed_to_its_case_and_shrunk(child, cpu, tmp_path):
    search = hunt(planted_backends.aborting, child, cpu, tmp_path)
    search.run()
    assert list(search.findings) == ["crashed"]
    case, outcome = search.findings["crashed"]
    assert (case.params.batch_size, case.params.s_kv) == (3, 63)
    assert outcome.sentence == "the process was ended by SIGABRT"
    assert "Fatal Python error: Aborted" in outcome.log
    assert child.attempt(case.words).kind == "crashed"
    assert child.attempt([*case.words, "--batch_size", "2"]).kind == "right"


def test_a_clean_error_is_a_rejection_and_another_a_finding(child, cpu, tmp_path):
    search = hunt(planted_backends.invalid, child, cpu, tmp_path)
    search.run()
    assert list(search.findings) == ["failed"]
    case, outcome = search.findings["failed"]
    assert (case.params.m, case.params.n, case.params.k) == (1, 1, 109)
    assert outcome.sentence.startswith("RuntimeError: no kernel for this k")
    assert "planted_backends.py" in outcome.sentence
    assert set(search.tally.refused) == {"ValueError: n must be at most 64"}


def test_a_search_can_be_held_to_some_shapes(child, cpu, tmp_path, monkeypatch):
    flags = (
        "--n 16 --k 32 --no-bias --no-enable_pdl",
        "--routine planted_invalid --backends planted --n 32 --k 64 --out_dtype float16",
        "--routine mm_fp8 --n 99999",
    )
    search, seen = hunt(planted_backends.invalid, child, cpu, tmp_path, flags=flags), []
    monkeypatch.setattr(child, "attempt", lambda words: (seen.append(cases.parse(words, ROUTINES)), RIGHT)[1])
    assert search.run()
    assert search.tally.checked >= 70
    assert {(one.shape.params.n, one.shape.params.k) for one in seen} == {(16, 32), (32, 64)}


def test_what_is_quarantined_is_never_launched_and_always_counted(child, cpu, tmp_path):
    known = (Quarantined("planted_abort*/*", "it aborts", "https://example.org/1"),)
    search = hunt(planted_backends.aborting, child, cpu, tmp_path, quarantine=known)
    with pytest.raises(NothingLaunchedError, match="quarantined: it aborts"):
        search.run()
    assert search.tally.checked == 0
    assert sum(search.tally.quarantined.values()) > 0


@pytest.mark.parametrize(
    ("which", "held"),
    [
        ("planted_aborting/*", True),
        ("planted_a*/b4-s256-*-planted", True),
        ("planted_aborting/b3-*", False),
        ("--routine planted_aborting", True),
        ("--routine planted_aborting --batch_size 4 --no-causal", True),
        ("--routine planted_aborting --batch_size 4 --causal", False),
        ("--routine mm_bf16", False),
    ],
)
def test_a_quarantine_is_a_glob_or_flags(which, held):
    params = next(iter(decode.tiers["smoke"]())).params
    case = Case(planted_backends.aborting, Shape(params), "planted")
    assert selects(which, case, all_routines()) == held


def test_a_search_stops_when_its_time_is_up(child, cpu, tmp_path, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr("pytest_flashinfer_perf.extensions.fuzz.shape_search.monotonic", lambda: 0.01 * next(ticks))
    search = hunt(planted_backends.aborting, child, cpu, tmp_path, seconds=0.5, flags=("--batch_size 1",))
    assert search.run()
    assert search.stopped
    assert 0 < search.tally.checked <= 50


def test_flags_that_fit_no_shape_are_an_error(child, cpu, tmp_path):
    search = hunt(planted_backends.last_page, child, cpu, tmp_path, flags=("--num_qo_heads 3 --num_kv_heads 2",))
    with pytest.raises(NothingLaunchedError, match="no valid shape has these flags"):
        search.run()


def test_a_child_that_cannot_try_anything_says_why(tmp_path):
    (tmp_path / "broken.py").write_text("raise OSError('not here')")
    with (
        closing(ExampleRunner(home((("broken", str(tmp_path / "broken.py")),)))) as kept,
        pytest.raises(ChildError, match="OSError: not here"),
    ):
        kept.attempt(["--routine", "mm_bf16"])


def test_a_finding_is_pasteable_and_its_file_gives_the_case_again(tmp_path):
    params = next(iter(planted_backends.last_page.tiers["smoke"]())).params
    case = Case(decode, Shape(params), "torch", seed=7)
    died = Outcome("crashed", "it died", log="last words")
    found = findings.describe(case, died, {"torch": "2", "cuda": None}, steady=False)
    path = found.write(tmp_path / "new")
    assert is_finding(path)
    assert findings.line_of(path) == case.words
    said = json.loads(path.read_text())
    kept = {"kind": "crashed", "steady": False, "versions": {"torch": "2"}, "log": "last words"}
    assert kept.items() <= said.items()
    assert found.lines[0] == "crashed, not every time: it died"


def test_a_case_that_the_child_does_not_know_is_an_error(child):
    with pytest.raises(ChildError, match="unknown name 'nobody'"):
        child.attempt(["--routine", "nobody"])


def test_an_example_that_takes_too_long_is_a_finding_and_the_next_one_is_tried(child, monkeypatch):
    words = shlex.split("--routine planted_endless --backends planted --n 1 --k 1")
    assert child.attempt([*words, "--m", "1"]).kind == "right"
    monkeypatch.setattr(child, "_seconds", 0.5)
    assert child.attempt([*words, "--m", "2"]).sentence == "no answer within 0.5 s"


def test_an_example_that_ends_the_whole_child_is_a_finding_too(child):
    words = shlex.split("--routine mm_bf16 --backends torch --m 1 --n 1 --k 1")
    assert child.attempt(words).kind == "right"
    os.killpg(child._child._process.pid, signal.SIGTERM)
    assert child.attempt(words).sentence == "the process was ended by SIGTERM"
