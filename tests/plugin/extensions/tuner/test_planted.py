"""Races and tunes of runners of FlashInfer's interface, in sessions whose times a script says."""

import functools
import json
import textwrap
from dataclasses import asdict

import planted_tactics
import pytest
import torch
from tuner_runs import LIMITS

from pytest_flashinfer_perf.engine import autotune
from pytest_flashinfer_perf.extensions.tuner import judge, tactics
from pytest_flashinfer_perf.extensions.tuner.loop import PLUGIN
from pytest_flashinfer_perf.extensions.tuner.results import CaseRace
from pytest_flashinfer_perf.extensions.tuner.search import NOT_LISTED, TuneJob
from pytest_flashinfer_perf.files import write_json
from pytest_flashinfer_perf.rows import fields

library = pytest.importorskip("flashinfer.autotuner", exc_type=ImportError)
M3, M8 = (f"bmm_fp8/m{m}-n16-k32-auto" for m in (3, 8))
AUTO = ("--perf-device=cpu", "--perf-backends=auto")
ENOUGH = 1e6  # seconds: a race ends when enough is known


@pytest.fixture
def file(pytester, monkeypatch):
    for home, name in ((library.AutoTuner, "_profile_single_kernel"), (torch.cuda, "is_current_stream_capturing")):
        monkeypatch.setattr(home, name, getattr(home, name))  # the file's own ends with the test
    plant(pytester, planted_tactics.FILE)
    yield pytester
    library.AutoTuner.get().clear_cache()


def plant(pytester, text):
    pytester.makepyfile(test_planted=textwrap.dedent(text))


def started(pytester, *options, **job):
    write_json(pytester.path / "job.json", asdict(TuneJob(str(pytester.path / "said.jsonl"), **job)))
    return pytester.runpytest("-p", PLUGIN, "--tuner-job=job.json", *options)


def ran(pytester, *options, **job):
    """The cases of one process, which runs in this one."""
    output = pytester.path / "said.jsonl"
    output.unlink(missing_ok=True)
    assert started(pytester, *(options or AUTO), **job).ret == 0
    events = [json.loads(line) for line in output.read_text().splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("begins", "end")
    ended = {event["case"]: event for event in events if event["event"] == "case"}
    return {name: fields.read(CaseRace, e["found"], name) if "found" in e else e for name, e in ended.items()}


def name(tactic):
    return f"CublasFp8GemmRunner {tactic}"


def picked(tactic, *, covered):
    choice = {"runner": "CublasFp8GemmRunner", "tactic": tactic}
    return {"tactic": {"answers": [["a_product", choice]]}, "is_covered": covered}


def test_a_race(file):
    picks = {"tune 1": picked(2, covered=True), "tune 2": picked(4, covered=True), "tune 3": picked(-1, covered=False)}
    seen = ran(file, budget=ENOUGH, picks={M8: picks, M3: {"tune 1": picked(8, covered=True)}})
    between, other = seen[M3], seen[M8]
    assert set(other.best) == {name(0), name(1)}
    assert between.best == (name(5),)
    assert (other.tactic(name(6)).state, other.tactic(name(7)).state) == ("wrong", "fails")
    assert between.tactic(name(7)).why == "the tactic failed; falling back to default tactic=-1."
    assert 6.5 < other.regret(name(4)).low < 7 < other.regret(name(4)).high < 7.5
    assert other.ways == {"default": name("default"), "tune 1": name(2), "tune 2": name(4), "tune 3": name("default")}
    assert other.untuned == ("tune 3",)
    notes = [finding.line for finding in judge.findings([between, other], LIMITS) if "no runner lists" in finding.line]
    assert notes == [f"NOTE {M3}: tuned, 1 of 1 takes {name(8)}: {NOT_LISTED}"]
    assert other.test.rpartition("::")[0] == "test_planted.py"


def test_the_entries_of_a_cache_are_judged(file, monkeypatch):
    kept = file.path / "tuned.json"
    with monkeypatch.context() as patch:
        patch.setattr(library, "autotune", functools.partial(library.autotune, cache=str(kept)))
        ran(file, tune=True)
    seen = ran(file, cache=str(kept))
    for case in (M3, M8):  # the first one is between two buckets
        assert (seen[case].ways["cache"], seen[case].untuned) == (name(0), ())
    document = json.loads(kept.read_text())
    [of_3] = [key for key in document if key.endswith("(3,))")]
    [of_8] = [key for key in document if key.endswith("(8,))")]

    def judged(**entries):
        kept.write_text(json.dumps({key: entry for key, entry in {**document, **entries}.items() if entry}))
        return ran(file, cache=str(kept))

    runner, _, *rest = document[of_8]
    assert judged(**{of_8: [runner, -1, *rest]})[M8].untuned == ()  # its entry is the default
    raises = judged(**{of_8: [runner, 7, *rest]})[M8]
    assert (raises.ways["cache"], raises.tactic(name(7)).state) == (name(7), "fails")
    missed = judged(**{of_3: None})
    assert (missed[M3].untuned, missed[M8].untuned) == (("cache",), ())
    said = [one.sentence for one in judge.findings(missed.values(), LIMITS)]
    assert "cache: no entry covers it, the default is taken" in said
    document["_metadata"] |= {"gpu": "Another GPU", "cublas_version": "1.0"}
    kept.write_text(json.dumps(document))
    with pytest.raises(autotune.CacheError, match=r"another environment: .*cublas_version 1\.0.*gpu Another GPU"):
        autotune.verify(str(kept), tune=False)


def test_a_fresh_tune_says_what_it_took(file):
    seen = ran(file, tune=True)
    assert seen[M3]["picked"] == seen[M8]["picked"] == picked(0, covered=True)
    assert len(library.AutoTuner.get().profiling_cache) == 1, "another bucket than the last call's takes no time"


def test_a_default_and_a_pick_that_raise_are_tactics_that_fail(file):
    raising = planted_tactics.FILE.replace("elif tactic == 7:", "elif tactic in (-1, 7):").replace("(6, 7)", "(6,)")
    plant(file, raising.replace('"PICKS", "0"', '"PICKS", "7"'))
    tuned = ran(file, "-k", "m8", *AUTO, tune=True)[M8]
    assert tuned["picked"] == picked(7, covered=True)
    seen = ran(file, "-k", "m8", *AUTO, budget=ENOUGH, picks={M8: {"tune 1": tuned["picked"]}})[M8]
    assert set(seen.best) == {name(0), name(1)}
    failing = [finding.sentence for finding in judge.findings([seen], LIMITS) if "which is fails" in finding.sentence]
    assert failing == [
        f"default takes {name('default')}, which is fails: RuntimeError: no such kernel",
        f"tuned, 1 of 1 takes {name(7)}, which is fails: RuntimeError: no such kernel",
    ]


class Odd:
    __hash__ = None

    def __repr__(self):
        return "odd"


class R(library.TunableRunner):
    """Of the second one "0" is the fastest."""

    def __init__(self, milliseconds):
        self.milliseconds, self.listed = milliseconds, [0, "0", {"tile": 1}, {"tile": 2}, Odd()]

    def get_valid_tactics(self, _inputs, _profile):
        return self.listed

    def get_cache_key_extras(self, _inputs):
        return (self.milliseconds,)

    def forward(self, *_, **__):
        """No tuner calls it here, whose stopwatch is the test's."""


def test_runners_of_one_class_and_tactics_of_any_type_are_told_apart(monkeypatch):
    takes = lambda _tuner, runner, _inputs, tactic, *_, **__: runner.milliseconds * (1 if tactic == "0" else 2)  # noqa: E731
    monkeypatch.setattr(library.AutoTuner, "_profile_single_kernel", takes)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    runners, answers = [R(8.0), R(2.0)], []

    def call():
        asked = ("a_product", runners, library.TuningConfig(), [torch.zeros(8, 8)])
        answers.append(library.AutoTuner.get().choose_one(*asked))

    [question] = tactics.questions(call)
    listed = ("0", "'0'", "{'tile': 1}", "{'tile': 2}", "odd")
    each = {f"{runner} {tactic}" for runner in ("R", "R#2") for tactic in listed}
    assert {choice.sentence for choice in question.choices} == {*each, "R default"}
    found = tactics.tuned(call).tactic
    assert found.answers == (("a_product", autotune.Choice("R#2", "0")),)
    with tactics.using(found):
        call()
    assert answers[-1] == (runners[1], "0")
    library.AutoTuner.get().clear_cache()


def test_answers_to_two_questions_are_searched_one_by_one_and_then_combined(file):
    plant(file, planted_tactics.TWO)
    seen = ran(file, budget=ENOUGH)[M8]
    assert seen.best == ("up: MoERunner 1; down: MoERunner (0,)",)  # which only the last stage combines
    assert seen.ways["default"] == "up: MoERunner default; down: MoERunner default"
    assert seen.regret(seen.ways["default"]).low < 3.5 < seen.regret(seen.ways["default"]).high


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nosuch.py",), "ERROR: file or directory not found: nosuch.py"),
        (("-k", "nosuch"), "ERROR: no tuner to look at: these arguments select no test with a case"),
        ((*AUTO, "--perf-refcheck=off"), "ERROR: tune-report checks every tactic and times it: leave out *"),
        ((*AUTO, "--perf-refcheck=only"), "ERROR: tune-report checks every tactic and times it: leave out *"),
    ],
)
def test_what_cannot_be_raced_is_a_sentence_before_anything_is_said(file, words, sentence):
    done = started(file, *words, budget=1.0)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(sentence)
    assert not file.path.joinpath("said.jsonl").exists()
