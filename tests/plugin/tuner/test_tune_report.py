"""The whole report: a runner of FlashInfer's interface by the wall clock, and the gate over 100 simulated seeds."""

import json
import os
import random
import subprocess
import sys
import textwrap

import planted_tactics
import pytest
from tuner_runs import ALL, BEST, COST_US, RAISES, SECOND, SLOW, SLOWEST, WRONG, rounds

from pytest_flashinfer_perf.gate.thresholds import Thresholds
from pytest_flashinfer_perf.measurement.autotune import Choice
from pytest_flashinfer_perf.tuner import report, sets
from pytest_flashinfer_perf.tuner.loop import PLUGIN, Job, entries
from pytest_flashinfer_perf.tuner.race import Race
from pytest_flashinfer_perf.tuner.tactics import Tactic

library = pytest.importorskip("flashinfer.autotuner", exc_type=ImportError)
SEEDS = 100
LIMITS = Thresholds((("gemm/mine*", {"max_regret": 0.05, "max_flips": 0}),))
OFFERED = {name: Tactic((("op", Choice("Runner", int(name))),)) for name in ALL}


def case(seed, tunes, costs=COST_US, default=SLOW, name="mine/m4-auto", **more):
    """A case of the file, with the stopwatch simulated."""
    race = Race({default, *tunes}, rounds(random.Random(seed), costs), lambda: True)
    race.run(ALL)
    ways = {"default": default, **{f"tune {n}": pick for n, pick in enumerate(tunes, start=1)}}
    made = {
        "case": name,
        "family": "gemm",
        "routine": "mine",
        "backend": "auto",
        "params": {"m": "4"},
        "questions": [{"op": "op", "runners": ["Runner"], "broken": [], "rounded": []}],
        "rounds": race.round,
        "tactics": entries(race, OFFERED),
        "best": list(race.field.best),
        "ways": ways,
        "untuned": [],
        "flips": sets.flips(race.field, tunes),
        "replayed": {},
    }
    return {**made, **more}


@pytest.fixture(scope="module")
def planted():
    """Tuners that take one of the two best, the second best, and the slowest."""
    return [case(seed, [BEST, SECOND, SLOWEST]) for seed in range(SEEDS)]


def test_a_planted_tuner_is_named_with_its_regret(planted):
    true = {name: COST_US[name] / COST_US[BEST] - 1 for name in (SECOND, SLOWEST)}
    for name, regret in true.items():
        intervals = [report.tactic(one, name)["regret"] for one in planted]
        assert sum(low <= regret <= high for low, _, high in intervals) >= 90, name
    slowest = [
        [f for f in report.findings([one], LIMITS) if f.verdict == "FAIL" and f"takes {SLOWEST}," in f.sentence]
        for one in planted
    ]
    assert all(len(found) == 1 for found in slowest)


def test_exit_codes_follow_the_limits(planted):
    for one in planted:
        found = list(report.findings([one], LIMITS))
        assert report.exit_code([one], found) == report.FOUND
        assert report.exit_code([one], report.findings([one], Thresholds())) == report.FINE


def test_a_tuner_that_takes_the_best_breaks_no_limit():
    codes = []
    for seed in range(SEEDS):
        one = case(seed, [BEST, "1", BEST], default="1")
        codes.append(report.exit_code([one], report.findings([one], LIMITS)))
    assert codes.count(report.FINE) >= 95


def test_flips_between_sets_are_counted_and_judged(planted):
    assert sum(one["flips"] == 2 for one in planted) >= 95
    assert all(report.outside(one) == 2 for one in planted if set(one["best"]) == {BEST, "1"})
    assert all(any("max_flips = 0" in f.sentence for f in report.findings([one], LIMITS)) for one in planted)


@pytest.mark.parametrize("pick", [WRONG, RAISES])
def test_a_choice_that_cannot_be_used_fails_without_any_limit(pick):
    one = case(0, [pick])
    [found] = [f for f in report.findings([one], Thresholds()) if f.fails]
    assert f"takes {pick}, which is" in found.sentence
    assert report.exit_code([one], [found]) == report.FOUND


def test_a_default_that_got_worse_is_slower_though_the_best_is_as_fast():
    worse = {**COST_US, SLOW: 160.0}
    seen = [list(report.grown([case(seed, [BEST], worse)], [case(seed + 500, [BEST])])) for seed in range(SEEDS)]
    assert sum([f.verdict for f in found] == ["SLOWER"] for found in seen) >= 95
    assert "though the best tactic is as fast" in seen[0][0].sentence
    same = [list(report.grown([case(seed, [BEST])], [case(seed + 500, [BEST])])) for seed in range(SEEDS)]
    assert sum(bool(found) for found in same) <= 5


def test_what_vanished_is_named():
    before = case(0, [BEST])
    now = {**before, "tactics": before["tactics"][:-1]}
    now["questions"] = [{**before["questions"][0], "runners": []}]
    sentences = [f.sentence for f in report.grown([now], [before])]
    gone = before["tactics"][-1]["tactic"]
    assert sentences == ["vanished since: 1 runner, Runner", f"vanished since: 1 tactic, {gone}"]


def test_the_best_of_one_size_is_judged_at_the_other():
    uniform = {**COST_US, "5": 80.0}
    here = case(1, [], uniform, name="mine/uniform", params={"load": "uniform"})
    there = case(2, [], name="mine/zipf", params={"load": "zipf"}, default="5")
    [one] = [one for one in report.transfers([here, there]) if one["used_in"] == "mine/zipf"]
    assert (one["best_of"], one["flag"]) == ("mine/uniform", "load")
    assert one["regret"][0] <= 0.4 <= one["regret"][2]


def test_failed_cases_are_incomplete_and_none_is_too():
    assert report.exit_code([{"case": "a", "failed": "x"}, case(0, [])], []) == report.INCOMPLETE
    assert report.exit_code([{"case": "a", "skipped": "x"}], []) == report.INCOMPLETE


def test_the_pages_have_each_case_and_each_finding(planted):
    found = list(report.findings(planted[:1], LIMITS))
    page = report.markdown(planted[:1], found)
    assert page.count("| FAIL |") == len([f for f in found if f.fails]) >= 3
    shown = "\n".join(report.lines(planted[:1]))
    assert "outside the best set: 2, flips between sets: 2" in shown
    assert f"  wrong            {WRONG}: output 0: 12 of 16 differ" in shown


@pytest.fixture
def file(pytester, monkeypatch):
    import torch

    for home, name in ((library.AutoTuner, "_profile_single_kernel"), (torch.cuda, "is_current_stream_capturing")):
        monkeypatch.setattr(home, name, getattr(home, name))  # the file's own ends with the test
    pytester.makepyfile(test_planted=textwrap.dedent(planted_tactics.FILE))
    yield pytester
    library.AutoTuner.get().clear_cache()


def ran(pytester, **job):
    """The cases of one process, which runs in this one."""
    told, output = pytester.path / "job.json", pytester.path / "said.jsonl"
    output.unlink(missing_ok=True)
    told.write_text(Job(str(output), **job).text)
    options = ("-p", PLUGIN, f"--tuner-job={told}", "--perf-backends=auto", "--perf-device=cpu")
    assert pytester.runpytest(*options).ret == 0
    events = [json.loads(line) for line in output.read_text().splitlines()]
    assert (events[0]["event"], events[-1]["event"]) == ("begins", "end")
    return {event["case"]: event for event in events if event["event"] == "case"}


M4, M8 = (f"bmm_fp8/m{m}-n16-k32-auto" for m in (4, 8))


def name(tactic):
    return f"CublasFp8GemmRunner {tactic}"


def test_a_race_by_the_wall_clock(file):
    """Of this machine, however busy it is: what differs by half is told apart, what is wrong or fails is named."""
    picks = {"tune 1": [["a_product", "CublasFp8GemmRunner", 2]], "tune 2": [["a_product", "CublasFp8GemmRunner", 4]]}
    seen = ran(file, budget=4.0, picks={M8: picks})
    uniform, other = seen[M4], seen[M8]
    states = {one["tactic"]: one["state"] for one in other["tactics"]}
    assert {name(0), name(1)} <= set(other["best"])
    assert name(4) not in other["best"]
    assert (states[name(6)], states[name(7)]) == ("wrong", "fails")
    assert name(5) in uniform["best"]
    assert name(5) not in other["best"]
    low, _, high = report.tactic(other, name(4))["regret"]
    assert 1 < low < 7 < high * 1.5
    assert other["flips"] == 1
    assert other["ways"] == {"default": name("default"), "tune 1": name(2), "tune 2": name(4)}
    assert other["replayed"]["default"] == {"answer": True, "eager": None, "graph": None}


def test_a_better_cache_is_written_and_flashinfer_loads_it(file):
    kept = str(file.path / "best.json")
    file.path.joinpath("out").mkdir()
    [wrote] = [one for case, one in ran(file, budget=2.0, write=kept).items() if case == M8]
    assert wrote["written"] is True
    seen = ran(file, budget=2.0, cache=kept)[M8]
    assert seen["ways"]["cache"] in wrote["best"]
    assert seen["replayed"]["cache"]["answer"] is True


def test_a_fresh_tune_says_what_it_took(file):
    kept = file.path / "tuned.json"
    seen = ran(file, tune=True, cache=str(kept))
    assert seen[M8]["picked"] == [["a_product", "CublasFp8GemmRunner", 0]]
    assert kept.exists()


def test_answers_to_two_questions_are_searched_one_by_one_and_then_combined(file):
    file.makepyfile(test_planted=textwrap.dedent(planted_tactics.TWO))
    seen = ran(file, budget=9.0)[M8]
    assert "up: MoERunner 1; down: MoERunner 0" in seen["best"]  # which only the last stage combines
    assert seen["ways"]["default"] == "up: MoERunner default; down: MoERunner default"
    assert report.tactic(seen, seen["ways"]["default"])["regret"][1] > 0.5  # truly 3.5: a busy machine blurs it
    assert seen["search"].startswith("4 of moe::up with the others' defaults, then 3 of moe::down with")


def test_a_tactic_that_ends_the_process_costs_no_more_than_itself(file):
    words = [sys.executable, "-m", "pytest_flashinfer_perf", "tune-report", "--tunes", "1", "--budget", "2"]
    beside = ["--output", "out", "--json", "r.json", "--markdown", "r.md", "--", "-k", "m8"]
    options = ["--perf-backends=auto", "--perf-device=cpu", "-p", "no:cacheprovider"]
    environ = {**os.environ, "CRASHES": "3", "PICKS": "4"}
    file.path.joinpath("flashinfer-perf.toml").write_text('[thresholds]\n"bmm*" = { max_regret = "40%" }\n')
    done = subprocess.run(
        [*words, *beside, *options], capture_output=True, text=True, check=False, cwd=file.path, env=environ
    )
    assert done.returncode == report.FOUND, done.stdout + done.stderr
    assert f"fails            {name(3)}: it ended its process with code -6" in done.stdout
    assert f"FAIL {M8}: max_regret = 40%: tuned, 1 of 1 takes {name(4)}, +" in done.stdout
    document = json.loads(file.path.joinpath("r.json").read_text())
    assert document["format"] == "flashinfer-perf tune-report 1"
    assert document["versions"]["flashinfer"]
    assert "| FAIL |" in file.path.joinpath("r.md").read_text()
