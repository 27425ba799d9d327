"""Races and tunes of runners of FlashInfer's interface, in sessions whose times a script says."""

import json
import os
import textwrap
from dataclasses import asdict

import planted_tactics
import pytest
from tuner_runs import LIMITS

from pytest_flashinfer_perf.engine import autotune
from pytest_flashinfer_perf.extensions.apis.known import all_apis
from pytest_flashinfer_perf.extensions.tuner import heuristics, judge, tactics
from pytest_flashinfer_perf.extensions.tuner.found import TUNERS, CaseFound, Replayed
from pytest_flashinfer_perf.extensions.tuner.loop import PLUGIN
from pytest_flashinfer_perf.extensions.tuner.search import NOT_LISTED, NOTHING_TO_CHOOSE, TuneJob
from pytest_flashinfer_perf.files import write_json
from pytest_flashinfer_perf.plugin import lines
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.settings.settings import Settings

library = pytest.importorskip("flashinfer.autotuner", exc_type=ImportError)
M3, M8 = (f"bmm_fp8/m{m}-n16-k32-auto" for m in (3, 8))
AUTO = ("--perf-device=cpu", "--perf-backends=auto")
ENOUGH = 1e6  # seconds: a race ends when enough is known


@pytest.fixture
def file(pytester, monkeypatch):
    import torch

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
    return {name: fields.read(CaseFound, e["found"], name) if "found" in e else e for name, e in ended.items()}


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
    assert (other.flips, other.untuned) == (2, ("tune 3",))
    assert other.replayed["default"] == Replayed(answer=True)
    notes = [finding.line for finding in judge.findings([between, other], LIMITS) if "no runner lists" in finding.line]
    assert notes == [f"NOTE {M3}: tuned, 1 of 1 takes {name(8)}: {NOT_LISTED}"]
    assert (other.questions[0].rounded, other.test.rpartition("::")[0]) == ((), "test_planted.py")
    assert between.questions[0].rounded == (
        "input 0 dimension 0: 3 is tuned as 4",
        "input 0 dimension 0: CublasFp8GemmRunner keeps entries by size, so that one of 4 does not serve 3",
    )


def test_a_better_cache_is_written_and_flashinfer_loads_it(file):
    kept = file.path / "best.json"
    file.path.joinpath("out").mkdir()
    wrote = ran(file, budget=ENOUGH, write=str(kept))
    seen = ran(file, cache=str(kept))
    for case in (M3, M8):  # the first one is between two buckets
        assert wrote[case].written is True
        assert seen[case].ways["cache"] in wrote[case].best
        assert (seen[case].replayed["cache"].answer, seen[case].untuned) == (True, ())
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


@pytest.mark.parametrize("tuner", TUNERS)
def test_a_fresh_tune_says_what_it_took(file, tuner):
    kept = file.path / "tuned.json"
    seen = ran(file, tune=tuner, cache=str(kept))
    assert seen[M3]["picked"] == seen[M8]["picked"] == picked(0, covered=True)
    assert kept.exists() is (tuner == "autotune")
    if kept.exists():
        entries = [key for key in json.loads(kept.read_text()) if not key.startswith("_")]
        assert len(entries) == 2, "a bucket that no call asks for takes no time"


def test_a_default_and_a_pick_that_raise_are_tactics_that_fail(file):
    raising = planted_tactics.FILE.replace("elif tactic == 7:", "elif tactic in (-1, 7):").replace("(6, 7)", "(6,)")
    plant(file, raising.replace('"PICKS", "0"', '"PICKS", "7"'))
    tuned = ran(file, "-k", "m8", *AUTO, tune="autotune", cache="tuned.json")[M8]
    assert tuned["picked"] == picked(7, covered=True)
    seen = ran(file, "-k", "m8", *AUTO, budget=ENOUGH, picks={M8: {"tune 1": tuned["picked"]}})[M8]
    assert set(seen.best) == {name(0), name(1)}
    failing = [finding.sentence for finding in judge.findings([seen], LIMITS) if "which is fails" in finding.sentence]
    assert failing == [
        f"default takes {name('default')}, which is fails: RuntimeError: no such kernel",
        f"tuned, 1 of 1 takes {name(7)}, which is fails: RuntimeError: no such kernel",
    ]


def test_runners_of_one_class_and_tactics_of_any_type_are_told_apart(file):
    plant(file, planted_tactics.ALIKE)
    seen = ran(file, budget=ENOUGH, write="best.json")[M8]
    listed = ("0", "'0'", "{'tile': 1}", "{'tile': 2}", "odd")
    each = {f"{runner} {tactic}" for runner in ("R", "R#2") for tactic in listed}
    assert {one.tactic for one in seen.tactics} == {*each, "R default"}
    assert {one.state for one in seen.tactics} == {"best", "slower"}
    assert (seen.best, seen.written) == (("R#2 '0'",), True)
    tuned = ran(file, tune="autotune", cache="tuned.json")[M8]["picked"]
    assert tuned["tactic"]["answers"] == [["a_product", {"runner": "R#2", "tactic": "0"}]]


def test_a_flashinfer_without_the_second_tuner_says_so(monkeypatch):
    monkeypatch.delattr("flashinfer.autotune_v2")
    with pytest.raises(tactics.TacticError, match="has no autotune_v2: use --tuner=autotune,"):
        tactics.autotune_v2()


def test_answers_to_two_questions_are_searched_one_by_one_and_then_combined(file):
    plant(file, planted_tactics.TWO)
    seen = ran(file, budget=ENOUGH)[M8]
    assert seen.best == ("up: MoERunner 1; down: MoERunner (0,)",)  # which only the last stage combines
    assert seen.ways["default"] == "up: MoERunner default; down: MoERunner default"
    assert seen.regret(seen.ways["default"]).low < 3.5 < seen.regret(seen.ways["default"]).high
    assert seen.search.startswith("4 of moe::up with the others' defaults, then 3 of moe::down with")


def test_a_heuristic_is_judged_by_all_that_it_could_have_chosen(file):
    """`auto` takes the slower one of two backends; what cannot run here is no rival. No option of ours is needed."""
    plant(file, planted_tactics.HEURISTIC)
    seen = ran(file, "-k", "auto", budget=ENOUGH)[M8]
    assert seen.ways == {"default": "auto"}
    assert {one.tactic for one in seen.tactics} == {"auto", "cublas", "cudnn", "cutlass", "torch"}
    assert not {"auto", "cudnn"} & set(seen.best)
    assert (seen.tactic("cutlass").state, seen.tactic("cutlass").why) == ("fails", "RuntimeError: no workspace")
    assert seen.search == "auto against 4 others"
    some = ran(file, "--perf-backends=auto,cublas,cudnn", budget=ENOUGH)
    assert {one.tactic for one in some[M8].tactics} == {"auto", "cublas", "cudnn"}
    assert some[M8.replace("auto", "cudnn")]["why"] == NOTHING_TO_CHOOSE
    assert some[M8.replace("auto", "cublas")].questions[0].broken == ("BrokenRunner: RuntimeError: no list",)


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


def test_the_algorithm_of_top_k_is_chosen_by_a_variable(monkeypatch):
    monkeypatch.setenv("FLASHINFER_TOPK_ALGO", "cub")
    words = ["--api", "flashinfer.topk.top_k", "--batch_size", "2", "--vocab_size", "64", "--top_k", "4"]
    flashinfer, torch = lines.cases_of(words, all_apis())
    chosen, *others = heuristics.rivals(flashinfer, None, Settings())
    assert chosen.name == "flashinfer"
    assert [one.name for one in others] == ["default", "clusters", "cub", "filtered", "multi_cta"]
    for one in others:
        with one.chosen():
            assert os.environ["FLASHINFER_TOPK_ALGO"] == one.name
    assert os.environ["FLASHINFER_TOPK_ALGO"] == "cub"
    assert [one.name for one in heuristics.rivals(torch, None, Settings())] == ["torch"]


@pytest.mark.usefixtures("file")
def test_any_run_can_have_all_tactics_in_its_rows(session):
    done = session(*AUTO, "--perf-tactics=1000", "-k", "m8", quick=False)
    assert done.outcomes == {"passed": 1, "deselected": 1}
    [row] = done.rows.values()
    states = {one["tactic"]: one["state"] for one in row["extra_info"]["tactics"]}
    assert {states[name(0)], states[name(1)]} == {"best"}
    assert (states[name(4)], states[name(6)], states[name(7)]) == ("slower", "wrong", "fails")
    [note] = [one for one in row["extra_info"]["notes"] if one.startswith("of 9 choices the best: {")]
    assert "; the default: +" in note


@pytest.mark.usefixtures("file")
@pytest.mark.parametrize("refcheck", ["off", "only"])
def test_tactics_in_rows_are_checked_too(session, refcheck):
    done = session("--perf-tactics=1", f"--perf-refcheck={refcheck}")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    done.complains("ERROR: --perf-tactics checks every tactic and times it: leave out --perf-refcheck")


def test_lines_that_differ_in_an_option_are_cases_of_their_own(file):
    file.path.joinpath("test_planted.py").rename(file.path / "conftest.py")
    line = "--routine bmm_fp8 --n 16 --k 32 --m 8 --backends auto"
    file.path.joinpath("list.txt").write_text(f"{line}\n{line} --autotune\n{line} --num_iters 9\n")
    assert list(ran(file, "--perf-testlist=list.txt", tune="autotune", cache="tuned.json")) == [
        "bmm_fp8/m8-n16-k32-autotune-auto",  # which is asked untuned as well
        f"{M8}-2",
    ]
