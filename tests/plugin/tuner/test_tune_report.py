"""The whole report: a runner of FlashInfer's interface by the wall clock, and the gate over 100 simulated seeds."""

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path

import planted_tactics
import pytest
import row_documents
from hypothesis import example, given
from hypothesis import strategies as st
from schemas import faults
from tuner_runs import ALL, BEST, COST_US, RAISES, SECOND, SLOW, SLOWEST, WRONG, rounds

from pytest_flashinfer_perf.cli.commands import tune_report
from pytest_flashinfer_perf.config.settings import Settings
from pytest_flashinfer_perf.files import write_json
from pytest_flashinfer_perf.flashinfer_benchmark.testlist import cases_of_line
from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.kernel_timing import instruments
from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.measurement import autotune
from pytest_flashinfer_perf.routines.derived import all_apis
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.run_file import RunError
from pytest_flashinfer_perf.tuner import found, heuristics, judge, page, report, sets, tactics
from pytest_flashinfer_perf.tuner.found import (
    FORMAT,
    TUNERS,
    CaseFound,
    LeftOut,
    QuestionFound,
    Replayed,
    Report,
    TacticFound,
    Transfer,
)
from pytest_flashinfer_perf.tuner.loop import PLUGIN
from pytest_flashinfer_perf.tuner.race import MOST_ROUNDS, Race
from pytest_flashinfer_perf.tuner.runs import Runs, TunerRunError
from pytest_flashinfer_perf.tuner.search import NOT_LISTED, NOTHING_TO_CHOOSE, TuneJob, entries
from pytest_flashinfer_perf.tuner.sets import Regret

library = pytest.importorskip("flashinfer.autotuner", exc_type=ImportError)
SEEDS = 100
LIMITS = Thresholds((("gemm/mine*", {"max_regret": 0.05, "max_flips": 0}),))


def case(seed, tunes, costs=COST_US, *, default=SLOW, name="mine/m4-auto", ghz=None, **more):
    """A case of the file, with the stopwatch simulated."""
    race = Race({default, *tunes}, rounds(random.Random(seed), costs, ghz=ghz))
    race.run(ALL, lambda: True)
    made = {
        "case": name,
        "family": "gemm",
        "routine": "mine",
        "backend": "auto",
        "params": {"m": "4"},
        "instrument": "wall",
        "cuda_graph": False,
        "device": "none",
        "search": "all 8 tactics",
        "questions": (QuestionFound("op", ("Runner",)),),
        "rounds": race.round,
        "tactics": tuple(entries(race)),
        "best": race.field.best,
        "ways": {"default": default, **{f"tune {n}": pick for n, pick in enumerate(tunes, start=1)}},
        "flips": sets.flips(race.field, tunes),
    }
    return CaseFound(**{**made, **more})


def written(*cases, found=(), left_out=()):
    return Report(FORMAT, "autotune", 1.0, {"flashinfer": "0.7.2"}, cases, tuple(left_out), (), tuple(found))


@pytest.fixture(scope="module")
def planted():
    """Tuners that take one of the two best, the second best, and the slowest."""
    return [case(seed, [BEST, SECOND, SLOWEST]) for seed in range(SEEDS)]


def test_a_planted_tuner_is_named_with_its_regret(planted):
    true = {name: COST_US[name] / COST_US[BEST] - 1 for name in (SECOND, SLOWEST)}
    for name, regret in true.items():
        intervals = [one.regret(name) for one in planted]
        assert sum(seen.low <= regret <= seen.high for seen in intervals) >= 90, name
    slowest = [
        [f for f in judge.findings([one], LIMITS) if f.verdict == "FAIL" and f"takes {SLOWEST}," in f.sentence]
        for one in planted
    ]
    assert all(len(found) == 1 for found in slowest)


def test_exit_codes_follow_the_limits(planted):
    for one in planted:
        found = list(judge.findings([one], LIMITS))
        assert judge.exit_code([one], [], found) == judge.FOUND
        assert judge.exit_code([one], [], list(judge.findings([one], Thresholds()))) == judge.FINE


def test_a_tuner_that_takes_the_best_breaks_no_limit():
    codes = []
    for seed in range(SEEDS):
        one = case(seed, [BEST, "1", BEST], default="1")
        codes.append(judge.exit_code([one], [], list(judge.findings([one], LIMITS))))
    assert codes.count(judge.FINE) >= 95


def test_a_member_of_the_best_set_that_may_be_far_behind_wants_more_rounds():
    """As a cuBLAS tactic on an H200: with few rounds 5 % behind was not yet surely slower."""
    members = {"a": (0.0, 0.0, 0.0), "b": (0.0, 0.05, 0.087), "c": (0.0, 0.01, 0.02)}
    tactics = tuple(TacticFound(name, "best", seconds=(1e-5,), regret=Regret(*one)) for name, one in members.items())
    shown = "\n".join(report.of_case(case(1, [], tactics=tactics, best=tuple(members), ways={"default": "a"})))
    assert "best, or not     b: +5.0 % (0.0 to 8.7), more rounds would tell: raise --budget" in shown
    assert shown.count("best, or not") == 1
    tactics = tuple(replace(one, seconds=(1e-5,) * MOST_ROUNDS) for one in tactics)
    shown = "\n".join(report.of_case(case(1, [], tactics=tactics, best=tuple(members), ways={"default": "a"})))
    assert "best, or not     b: +5.0 % (0.0 to 8.7), they differ too little to be told apart" in shown
    assert "--budget" not in shown


def test_flips_between_sets_are_counted_and_judged(planted):
    assert sum(one.flips == 2 for one in planted) >= 95
    assert all(judge.outside(one) == 2 for one in planted if set(one.best) == {BEST, "1"})
    assert all(any("max_flips = 0" in f.sentence for f in judge.findings([one], LIMITS)) for one in planted)


@pytest.mark.parametrize("pick", [WRONG, RAISES])
def test_a_choice_that_cannot_be_used_fails_without_any_limit(pick):
    one = case(0, [pick])
    [found] = [f for f in judge.findings([one], Thresholds()) if f.fails]
    assert f"takes {pick}, which is" in found.sentence
    assert judge.exit_code([one], [], [found]) == judge.FOUND


def grown(now, then, limits=LIMITS):
    return [found.verdict for found in judge.grown([now], [], [then], limits)]


def test_a_default_that_got_worse_is_slower_though_the_best_is_as_fast(planted):
    """By 5.6 %, in other processes."""
    worse = [case(seed + 500, [BEST], {**COST_US, SLOW: 132.0}) for seed in range(SEEDS)]
    assert sum(grown(now, then) == ["SLOWER"] for now, then in zip(worse, planted, strict=True)) >= 95
    [found] = judge.grown(worse[:1], [], planted[:1], LIMITS)
    assert found.sentence.endswith("though the best is as fast")


def test_levels_of_processes_of_identical_code_are_not_slower():
    """A tactic's level in a process is off by up to 2 %, which its rounds do not show."""
    rng = random.Random(0)
    costs = [{name: cost * rng.uniform(0.99, 1.01) for name, cost in COST_US.items()} for _ in range(SEEDS + 1)]
    seen = [case(seed, [BEST], {**cost, SLOW: 103.0}) for seed, cost in enumerate(costs)]
    assert not any(grown(now, then) for then, now in itertools.pairwise(seen))


SHARES = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(lambda shares: sets.Regret(*sorted(shares)))
PLANTED = case(0, [])


def of_default(regret, us):
    """A case whose default has this regret, beside a best of so many microseconds."""
    default, best = PLANTED.ways["default"], PLANTED.best[0]
    made = [replace(PLANTED.tactic(default), regret=regret), replace(PLANTED.tactic(best), seconds=(us * 1e-6,))]
    return replace(PLANTED, tactics=tuple(made), best=(best,))


@given(SHARES, SHARES, st.floats(1, 1000), st.floats(0.01, 0.5))
@example(sets.Regret(0.0, 0.0057, 0.0108), sets.Regret(0.0149, 0.0267, 0.0338), 33.2, 0.02)  # of identical code
def test_a_growth_counts_only_surely_beyond_the_threshold_of_the_gate(then, now, us, slower):
    limits = Thresholds((("gemm/mine*", {"slower": slower}),))
    before, after = of_default(then, us), of_default(now, us)
    surely = (1 + now.low) / (1 + then.high) - 1
    found = grown(after, before, limits)
    assert not found or surely > max(slower, 0.1 / us) - 1e-9
    assert found or surely < max(slower, 0.1 / us) + 1e-9
    assert not (found and grown(before, after, limits))


def test_what_vanished_is_named():
    before = case(0, [BEST])
    now = replace(before, tactics=before.tactics[:-1], questions=(QuestionFound("op", ()),))
    sentences = [f.sentence for f in judge.grown([now], [], [before], LIMITS)]
    gone = before.tactics[-1].tactic
    assert sentences == ["vanished since: 1 runner, Runner", f"vanished since: 1 tactic, {gone}"]
    broken = [replace(one, state="fails", why="no kernel") if one.tactic == BEST else one for one in before.tactics]
    [lost] = judge.grown([replace(before, tactics=tuple(broken), best=("1",))], [], [before], LIMITS)
    assert lost.line == f"NOTE {before.case}: {BEST} was among the best, and now fails: no kernel"
    between = QuestionFound("op", ("Runner",), rounded=("3 is tuned as 4", "one of 4 does not serve 3"))
    mended = replace(before, questions=(replace(between, rounded=between.rounded[:1]),))
    [served] = judge.grown([mended], [], [replace(before, questions=(between,))], LIMITS)
    assert served.line == f"NOTE {before.case}: no longer as in --base, op: one of 4 does not serve 3"
    both = [replace(before.tactics[0], tactic=f"up: A {up}; down: B {down}") for up in (0, 1) for down in (0, 1)]
    now, before = replace(before, tactics=tuple(both[1:3])), replace(before, tactics=tuple(both))
    assert not list(judge.grown([now], [], [before], LIMITS)), "every answer is there, combined otherwise"


def test_a_report_of_another_gpu_is_not_compared():
    before, now = case(0, [BEST]), replace(case(0, [BEST], {**COST_US, SLOW: 160.0}), device="B200")
    [found] = judge.grown([now], [], [before], LIMITS)
    assert found.line == f"NOTE {now.case}: not compared: --base was measured elsewhere or in another way"


def test_the_best_of_one_size_is_judged_at_the_other():
    uniform = {**COST_US, "5": 80.0}
    here = case(1, [], uniform, name="mine/uniform", params={"load": "uniform"})
    there = case(2, [], name="mine/zipf", params={"load": "zipf"}, default="5")
    [one] = [one for one in judge.transfers([here, there]) if one.used_in == "mine/zipf"]
    assert (one.best_of, one.flag) == ("mine/uniform", "load")
    assert one.regret.low <= 0.4 <= one.regret.high


def test_failed_cases_are_incomplete_and_none_is_too():
    assert judge.exit_code([case(0, [])], [LeftOut("a", "failed", "x")], []) == judge.INCOMPLETE
    assert judge.exit_code([], [LeftOut("a", "skipped", "x")], []) == judge.INCOMPLETE
    assert judge.exit_code([case(0, [])], [LeftOut("a", "skipped", "x")], []) == judge.FINE


def unjudged(*cases, limits=LIMITS, before=(), left_out=()):
    found = [*judge.findings(cases, limits), *judge.grown(cases, left_out, before, limits)]
    assert judge.exit_code(cases, [], found) == judge.INCOMPLETE
    return [one.sentence for one in found if one.verdict == "UNJUDGED"]


def test_what_is_asked_for_and_not_known_is_incomplete():
    fine = case(0, [BEST], default="1")
    tactics = tuple(replace(one, state="untimed") if one.tactic == SLOWEST else one for one in fine.tactics)
    assert unjudged(replace(fine, tactics=tactics)) == ["1 tactic of 8 had no turn: raise --budget"]
    tactics = tuple(replace(one, regret=None) if one.tactic == BEST else one for one in fine.tactics)
    assert unjudged(replace(fine, tactics=tactics)) == ["max_regret = 5%: what 0 costs is not known"]
    assert unjudged(case(0, [], default="1")) == ["max_flips = 0: no fresh process tuned it: raise --tunes"]
    alone = replace(fine, tactics=fine.tactics[:1], questions=(QuestionFound("mm", ("R",), ("R: TypeError",)),))
    assert unjudged(alone, limits=Thresholds()) == ["mm: lists no tactics, R: TypeError"]
    assert unjudged(fine, before=[case(0, [], name="mine/other")]) == ["it has none of these cases"]
    gone = LeftOut("mine/gone", "skipped", "it asks nothing")
    [sentence] = unjudged(fine, before=[fine, case(0, [], name="mine/gone")], left_out=[gone])
    assert sentence == "it was raced in --base, and is left out here: it asks nothing"


@pytest.mark.parametrize("glob", ["mine/m4*", "gemm/mine/m4*", "gemm/gemm/m4-auto", "tests/gemm/*"])
def test_limits_select_a_case_by_its_name_or_its_test(glob):
    slow = case(0, [BEST], test="tests/gemm/test_gemm.py::test_gemm[m4-auto]")
    [found] = judge.findings([slow], Thresholds(((glob, {"max_regret": 0.05}),)))
    assert (found.verdict, found.case) == ("FAIL", slow.case)


def test_limits_of_another_name_are_noted():
    misspelled = Thresholds((("bmn*", {"max_regret": 0.05}), ("other*", {"slower": 0.01})))
    [found] = judge.findings([case(0, [BEST], default="1")], misspelled)
    assert found.line == "NOTE bmn*: [thresholds] has limits for it, and it fits no case that was raced"


def test_the_pages_have_each_case_and_each_finding(planted):
    found = list(judge.findings(planted[:1], LIMITS))
    made = written(planted[0], found=found, left_out=[LeftOut("<other>", "skipped", "x")])
    assert report.markdown(made).count("| FAIL |") == len([f for f in found if f.fails]) >= 3
    shown = "\n".join(report.lines(made))
    assert "outside the best set: 2, flips between sets: 2" in shown
    assert f"  wrong            {WRONG}: output 0: 12 of 16 differ" in shown


def test_the_summaries_hide_no_failure(planted):
    transfer = Transfer("mine/m4", "mine/m8", "m", Regret(0.1, 0.2, 0.3))
    made = replace(written(planted[0], left_out=[LeftOut("mine/m9", "failed", "no memory")]), transfers=(transfer,))
    tables = report.markdown(made)
    for line in (
        f"| wrong | {planted[0].case} | {WRONG} | output 0: 12 of 16 differ |",
        f"| fails | {planted[0].case} | {RAISES} | RuntimeError: no such kernel |",
        "| failed | mine/m9 | no memory |",
        "| mine/m4 | mine/m8 | m | +20.0 % (10.0 to 30.0) |",
    ):
        assert line in tables
    assert "<p>failed mine/m9: no memory</p>" in page.html(made)
    assert "<p>the best of mine/m4 used in mine/m8 (m differs): +20.0 % (10.0 to 30.0)</p>" in page.html(made)


def test_a_name_neither_moves_a_cursor_nor_makes_a_line_of_a_page(planted):
    odd = replace(planted[0].tactic(BEST), tactic="\x1b[31mred\nFAIL <b>")
    shown = page.html(written(replace(planted[0], tactics=(odd, planted[0].tactic(WRONG)), best=(odd.tactic,))))
    assert "\x1b" not in shown
    assert "<title>\\x1b[31mred\\nFAIL &lt;b&gt;: " in shown
    assert "best             {\\x1b[31mred\\nFAIL &lt;b&gt;}" in shown


def test_the_strips_have_a_point_for_each_that_was_timed(planted):
    made = written(planted[0], left_out=[LeftOut("<other>", "skipped", "x")])
    body = page.html(made).partition("</style>")[2].replace("</html>", "</all>")
    drawn = ET.fromstring(f"<all>{body}")
    timed = [one for one in planted[0].tactics if one.seconds]
    assert len(drawn.findall(".//circle[title]")) == len(timed) == 6
    assert len(drawn.findall(".//circle[@class='best']")) == len(planted[0].best)
    assert len(drawn.findall(".//circle[@class='chosen']")) == len(set(planted[0].ways.values()) - {WRONG, RAISES})


def test_a_file_is_what_the_schema_says_and_is_read_again(planted, tmp_path):
    made = written(*planted[:2], found=judge.findings(planted[:2], LIMITS), left_out=(LeftOut("a", "failed", "x"),))
    path = tmp_path / "r.json"
    write_json(path, asdict(made))
    schema = json.loads(Path(found.__file__).with_name("tune_report.schema.json").read_text())
    assert schema == row_documents.tune_report(), "python tools/row_documents.py writes it"
    document = json.loads(path.read_text())
    assert list(faults(schema, document, "report")) == []
    assert list(faults(schema, {**document, "cases": [{}]}, "report"))
    assert found.read(path, "--base") == made
    path.write_text("{}")
    with pytest.raises(found.ReportError, match="is no file of tune-report"):
        found.read(path, "--base")


@pytest.mark.parametrize(
    "broken", [{"ways": {}}, {"best": ("none",)}, {"best": ()}, {"seconds": ()}, {"seconds": (0.0,)}]
)
def test_a_base_that_does_not_fit_itself_is_refused(planted, tmp_path, broken):
    case = planted[0]
    if "seconds" in broken:
        broken = {"tactics": tuple(replace(one, **broken) for one in case.tactics)}
    write_json(tmp_path / "r.json", asdict(written(replace(case, **broken))))
    with pytest.raises(found.ReportError, match=f"{case.case}: its ways, times and regrets do not fit: write it anew"):
        found.read(tmp_path / "r.json", "--base")


def test_a_limit_that_the_clock_broke_is_no_failure():
    """The slower one ran while the card was slower: in cycles it is as fast as the best."""
    costs = {**COST_US, "5": 100.0, SLOW: 125.0}
    seen = [case(seed, [BEST], costs, ghz=lambda name: 1.6 if name == SLOW else 2.0) for seed in range(20)]
    for one in seen:
        [note] = [f for f in judge.findings([one], LIMITS) if f"takes {SLOW}" in f.sentence]
        assert note.verdict == "NOTE"
        assert note.sentence.endswith("in SM cycles: the clock was lower meanwhile")
    steady = [case(seed, [BEST], costs, ghz=lambda _: 2.0) for seed in range(20)]
    assert all(f.verdict == "FAIL" for one in steady for f in judge.findings([one], LIMITS) if SLOW in f.sentence)


@pytest.fixture
def file(pytester, monkeypatch):
    import torch

    owns = ((library.AutoTuner, "_profile_single_kernel"), (torch.cuda, "is_current_stream_capturing"))
    for home, name in (*owns, (instruments, "time")):
        monkeypatch.setattr(home, name, getattr(home, name))  # the file's own ends with the test
    pytester.makepyfile(test_planted=textwrap.dedent(planted_tactics.FILE))
    yield pytester
    library.AutoTuner.get().clear_cache()


def ran(pytester, *options, **job):
    """The cases of one process, which runs in this one."""
    told, output = pytester.path / "job.json", pytester.path / "said.jsonl"
    output.unlink(missing_ok=True)
    write_json(told, asdict(TuneJob(str(output), **job)))
    words = ("-p", PLUGIN, f"--tuner-job={told}", "--perf-device=cpu", *(options or ("--perf-backends=auto",)))
    assert pytester.runpytest(*words).ret == 0
    events = [json.loads(line) for line in output.read_text().splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("begins", "end")
    ended = {event["case"]: event for event in events if event["event"] == "case"}
    return {name: fields.read(CaseFound, e["found"], name) if "found" in e else e for name, e in ended.items()}


M3, M8 = (f"bmm_fp8/m{m}-n16-k32-auto" for m in (3, 8))


def name(tactic):
    return f"CublasFp8GemmRunner {tactic}"


def picked(tactic, *, covered):
    choice = {"runner": "CublasFp8GemmRunner", "tactic": tactic}
    return {"tactic": {"answers": [["a_product", choice]]}, "is_covered": covered}


def test_a_race(file):
    picks = {"tune 1": picked(2, covered=True), "tune 2": picked(4, covered=True), "tune 3": picked(-1, covered=False)}
    seen = ran(file, budget=60.0, picks={M8: picks, M3: {"tune 1": picked(8, covered=True)}})
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
    wrote = ran(file, budget=60.0, write=str(kept))
    seen = ran(file, budget=60.0, cache=str(kept))
    for case in (M3, M8):  # the first one is between two buckets
        assert wrote[case].written is True
        assert seen[case].ways["cache"] in wrote[case].best
        assert (seen[case].replayed["cache"].answer, seen[case].untuned) == (True, ())
    document = json.loads(kept.read_text())
    [of_3] = [key for key in document if key.endswith("(3,))")]
    [of_8] = [key for key in document if key.endswith("(8,))")]
    kept.write_text(json.dumps({**document, of_8: [document[of_8][0], -1, *document[of_8][2:]]}))
    assert ran(file, budget=0.1, cache=str(kept))[M8].untuned == ()  # its entry is the default
    kept.write_text(json.dumps({**document, of_8: [document[of_8][0], 7, *document[of_8][2:]]}))
    raises = ran(file, "-k", "m8", "--perf-backends=auto", budget=0.1, cache=str(kept))[M8]
    assert (raises.ways["cache"], raises.tactic(name(7)).state) == (name(7), "fails")
    kept.write_text(json.dumps({key: entry for key, entry in document.items() if key != of_3}))
    missed = ran(file, budget=0.1, cache=str(kept))
    assert (missed[M3].untuned, missed[M8].untuned) == (("cache",), ())
    assert "cache: no entry covers it, the default is taken" in [
        f.sentence for f in judge.findings(missed.values(), LIMITS)
    ]
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
    file.makepyfile(test_planted=textwrap.dedent(raising).replace('"PICKS", "0"', '"PICKS", "7"'))
    tuned = ran(file, "-k", "m8", "--perf-backends=auto", tune="autotune", cache=str(file.path / "tuned.json"))[M8]
    assert tuned["picked"] == picked(7, covered=True)
    seen = ran(file, "-k", "m8", "--perf-backends=auto", budget=60.0, picks={M8: {"tune 1": tuned["picked"]}})[M8]
    assert set(seen.best) == {name(0), name(1)}
    failing = [finding.sentence for finding in judge.findings([seen], LIMITS) if "which is fails" in finding.sentence]
    assert failing == [
        f"default takes {name('default')}, which is fails: RuntimeError: no such kernel",
        f"tuned, 1 of 1 takes {name(7)}, which is fails: RuntimeError: no such kernel",
    ]


def test_runners_of_one_class_and_tactics_of_any_type_are_told_apart(file):
    file.makepyfile(test_planted=textwrap.dedent(planted_tactics.ALIKE))
    kept = file.path / "best.json"
    seen = ran(file, budget=60.0, write=str(kept))[M8]
    assert {one.tactic for one in seen.tactics} == {
        *(
            f"{runner} {tactic}"
            for runner in ("R", "R#2")
            for tactic in ("0", "'0'", "{'tile': 1}", "{'tile': 2}", "odd")
        ),
        "R default",
    }
    assert {one.state for one in seen.tactics} == {"best", "slower"}
    assert (seen.best, seen.written) == (("R#2 '0'",), True)
    tuned = ran(file, tune="autotune", cache=str(file.path / "tuned.json"))[M8]["picked"]
    assert tuned["tactic"]["answers"] == [["a_product", {"runner": "R#2", "tactic": "0"}]]


def test_a_flashinfer_without_the_second_tuner_says_so(monkeypatch):
    monkeypatch.delattr("flashinfer.autotune_v2")
    with pytest.raises(tactics.TacticError, match="has no autotune_v2: use --tuner=autotune,"):
        tactics.autotune_v2()


def test_answers_to_two_questions_are_searched_one_by_one_and_then_combined(file):
    file.makepyfile(test_planted=textwrap.dedent(planted_tactics.TWO))
    seen = ran(file, budget=60.0)[M8]
    assert seen.best == ("up: MoERunner 1; down: MoERunner (0,)",)  # which only the last stage combines
    assert seen.ways["default"] == "up: MoERunner default; down: MoERunner default"
    assert seen.regret(seen.ways["default"]).low < 3.5 < seen.regret(seen.ways["default"]).high
    assert seen.search.startswith("4 of moe::up with the others' defaults, then 3 of moe::down with")


def test_a_heuristic_is_judged_by_all_that_it_could_have_chosen(file):
    """`auto` takes the slower one of two backends; what cannot run here is no rival."""
    file.makepyfile(test_planted=textwrap.dedent(planted_tactics.HEURISTIC))
    seen = ran(file, "-k", "auto", budget=60.0)[M8]
    assert seen.ways == {"default": "auto"}
    assert {one.tactic for one in seen.tactics} == {"auto", "cublas", "cudnn", "cutlass", "torch"}
    assert not {"auto", "cudnn"} & set(seen.best)
    assert (seen.tactic("cutlass").state, seen.tactic("cutlass").why) == ("fails", "RuntimeError: no workspace")
    assert seen.search == "auto against 4 others"
    some = ran(file, "--perf-backends=auto,cublas,cudnn", budget=1.0)
    assert {one.tactic for one in some[M8].tactics} == {"auto", "cublas", "cudnn"}
    assert some[M8.replace("auto", "cudnn")]["why"] == NOTHING_TO_CHOOSE
    assert some[M8.replace("auto", "cublas")].questions[0].broken == ("BrokenRunner: RuntimeError: no list",)


def test_the_algorithm_of_top_k_is_chosen_by_a_variable(monkeypatch):
    monkeypatch.setenv("FLASHINFER_TOPK_ALGO", "cub")
    words = ["--api", "flashinfer.topk.top_k", "--batch_size", "2", "--vocab_size", "64", "--top_k", "4"]
    flashinfer, torch = cases_of_line(words, all_apis())
    chosen, *others = heuristics.rivals(flashinfer, None, Settings())
    assert chosen.name == "flashinfer"
    assert [one.name for one in others] == ["default", "clusters", "cub", "filtered", "multi_cta"]
    for one in others:
        with one.chosen():
            assert os.environ["FLASHINFER_TOPK_ALGO"] == one.name
    assert os.environ["FLASHINFER_TOPK_ALGO"] == "cub"
    assert [one.name for one in heuristics.rivals(torch, None, Settings())] == ["torch"]


def test_any_run_can_have_all_tactics_in_its_rows(file):
    options = (
        "--perf-backends=auto",
        "--perf-device=cpu",
        "--perf-tactics=15",
        "-k",
        "m8",
        "--benchmark-json=run.json",
    )
    file.runpytest(*options).assert_outcomes(passed=1)
    [row] = json.loads(file.path.joinpath("run.json").read_text())["benchmarks"]
    states = {one["tactic"]: one["state"] for one in row["extra_info"]["tactics"]}
    assert {states[name(0)], states[name(1)]} == {"best"}
    assert (states[name(4)], states[name(6)], states[name(7)]) == ("slower", "wrong", "fails")
    [note] = [one for one in row["extra_info"]["notes"] if one.startswith("of 9 choices the best: {")]
    assert "; the default: +" in note


@pytest.mark.parametrize("refcheck", ["off", "only"])
def test_tactics_in_rows_are_checked_too(file, refcheck):
    done = file.runpytest("--perf-tactics=1", "--perf-device=cpu", f"--perf-refcheck={refcheck}")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines("ERROR: --perf-tactics checks every tactic and times it: leave out --perf-refcheck")


def test_lines_that_differ_in_an_option_are_cases_of_their_own(file):
    file.path.joinpath("test_planted.py").rename(file.path / "conftest.py")
    line = "--routine bmm_fp8 --n 16 --k 32 --m 8 --backends auto"
    file.path.joinpath("list.txt").write_text(f"{line}\n{line} --autotune\n{line} --num_iters 9\n")
    assert list(ran(file, "--perf-testlist=list.txt", tune="autotune", cache="tuned.json")) == [
        "bmm_fp8/m8-n16-k32-autotune-auto",  # which is asked untuned as well
        f"{M8}-2",
    ]


@pytest.mark.parametrize("refcheck", ["off", "only"])
def test_tactics_without_a_check_or_a_time_are_refused(file, refcheck):
    write_json(file.path / "job.json", asdict(TuneJob(str(file.path / "said.jsonl"), budget=1.0)))
    words = ("-p", PLUGIN, "--tuner-job=job.json", "--perf-device=cpu", "--perf-backends=auto")
    done = file.runpytest(*words, f"--perf-refcheck={refcheck}")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines("ERROR: tune-report checks every tactic and times it: leave out --perf-refcheck")
    assert not file.path.joinpath("said.jsonl").exists()


def test_tactics_that_hang_or_change_an_input_cost_no_more_than_themselves(file):
    words = [sys.executable, "-m", "pytest_flashinfer_perf", "tune-report", "--tunes", "1", "--budget", "2"]
    beside = ["--output", "out", "--json", "r.json", "--markdown", "r.md", "--html", "r.html", "--", "-k", "m8"]
    options = ["--perf-backends=auto", "--perf-device=cpu", "--perf-timeout=8", "-p", "no:cacheprovider"]
    environ = {**os.environ, "HANGS": "3", "SPOILS": "2", "PICKS": "4"}
    file.path.joinpath("flashinfer-perf.toml").write_text('[thresholds]\n"bmm*" = { max_regret = "40%" }\n')
    done = subprocess.run(
        [*words, *beside, *options], capture_output=True, text=True, check=False, cwd=file.path, env=environ
    )
    assert done.returncode == judge.FOUND, done.stdout + done.stderr
    assert f"fails            {name(3)}: it did not end within --perf-timeout" in done.stdout
    assert f"fails            {name(2)}: it changed an input of the call" in done.stdout
    assert f"FAIL {M8}: max_regret = 40%: tuned, 1 of 1 takes {name(4)}, +" in done.stdout
    made = found.read(file.path / "r.json", "--base")
    assert made.versions["flashinfer"]
    assert made.versions["gpu_uuid"] is None
    assert (made.cases[0].case, set(made.cases[0].best)) == (M8, {name(0), name(1)})
    assert "| FAIL |" in file.path.joinpath("r.md").read_text()
    assert f"<h2>{M8}</h2>" in file.path.joinpath("r.html").read_text()


def test_a_tune_that_fails_is_named_and_fails(tmp_path, monkeypatch):
    said = {"tune 1": [{"case": M8, "outcome": "failed", "why": "no memory"}, {"case": M3, "picked": {}}], "race": []}
    monkeypatch.setattr(Runs, "_ran", lambda _self, _job, title: said[title])
    runs = Runs((), 1, "autotune", TuneJob(), tmp_path)
    cases, left = runs.cases()
    assert (left, runs.picks) == ([LeftOut(M8, "failed", "tune 1: no memory")], {M3: {"tune 1": {}}})
    assert judge.exit_code(cases, left, []) == judge.INCOMPLETE


def test_a_cache_file_that_is_not_there_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"--cache=a\.json: the file is not there, autotune\(cache=\)"):
        tune_report.main(["--cache", "a.json", "--", "--perf-device=cpu"])
    assert not list(tmp_path.iterdir())


TACTIC = [{"event": "starts", "case": "b"}, {"event": "tactic", "case": "b", "tactic": "R 1"}]
BEGINS = {"event": "begins", "versions": {"torch": "2"}, "cases": ["a", "b", "c"]}


@pytest.fixture
def deaths(tmp_path, monkeypatch):
    """The case of each that is left out of a race whose processes say so much, and end with this code and log."""

    def left_out(*said):
        left, jobs = iter(said), []

        def started(where, _arguments, log):
            jobs.append(TuneJob(**json.loads(Path(where.command[-1].partition("=")[2]).read_text())))
            events, code, text = next(left)
            log.write_text(text)
            with Path(jobs[-1].output).open("a") as there:
                there.writelines(json.dumps(event) + "\n" for event in events)
            return code

        monkeypatch.setattr(processes, "started", started)
        cases, lost = Runs((), 0, "autotune", TuneJob(), tmp_path).cases()
        assert cases == []
        return {one.case: one.why for one in lost}, [job.crashed for job in jobs]

    return left_out


def test_processes_that_end_before_a_word_are_not_started_for_ever(deaths, tmp_path):
    skipped = [BEGINS, {"event": "case", "case": "a", "outcome": "skipped", "why": "x"}, *TACTIC]
    lost, crashed = deaths((skipped, 139, "a segmentation fault"), ([], 3, "no GPU"))
    why = f"not looked at: it ended its process with code 3, full log: {tmp_path / 'race.2.log'}"
    assert lost == {"a": "x", "b": why, "c": why}
    assert crashed == [{}, {"b": {"R 1": "it ended its process with code 139"}}]
    assert (tmp_path / "race.log").read_text() == "a segmentation fault"


def test_a_process_that_never_begins_is_an_error(deaths):
    with pytest.raises(TunerRunError, match=r"race: it ended its process with code 4, .*race\.log\nERROR: no such"):
        deaths(([], 4, "ERROR: no such option"))


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("Timeout (0:00:08)!\n", "it did not end within --perf-timeout"),
        ("", "it ended its process with code 1"),
    ],
)
def test_an_exit_code_is_a_timeout_only_if_the_log_says_so(deaths, log, why):
    ends = [{"event": "end"}]
    assert deaths(([BEGINS, *TACTIC], 1, log), (ends, 0, ""))[1][1] == {"b": {"R 1": why}}


def test_the_wait_for_another_run_is_no_part_of_its_seconds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Runs, "cases", lambda _: ([], []))
    ends = contextlib.ExitStack()
    ends.enter_context(processes.alone_on(None))
    threading.Timer(1.0, ends.close).start()
    assert tune_report.main(["--json", "r.json", "--", "--perf-device=cpu"]) == judge.INCOMPLETE
    assert found.read(tmp_path / "r.json", "--base").seconds < 0.5
