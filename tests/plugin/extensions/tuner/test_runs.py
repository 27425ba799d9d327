"""The command and its processes: what ends one of them costs no more than itself."""

import json
import os
import textwrap
from pathlib import Path

import planted_tactics
import pytest
import scripted

from pytest_flashinfer_perf.extensions.tuner import judge
from pytest_flashinfer_perf.extensions.tuner import tune_report_command as tune_report
from pytest_flashinfer_perf.extensions.tuner.results import LeftOut, Report
from pytest_flashinfer_perf.extensions.tuner.runs import Runs, TunerRunError
from pytest_flashinfer_perf.extensions.tuner.search import TuneJob
from pytest_flashinfer_perf.files import read_json
from pytest_flashinfer_perf.rows import fields
from pytest_flashinfer_perf.rows.run_file import RunError
from pytest_flashinfer_perf.session import processes

M3, M8 = (f"bmm_fp8/m{m}-n16-k32-auto" for m in (3, 8))
RUNNER = "CublasFp8GemmRunner"
NO_END, CHANGED = "it did not end within --perf-timeout", "it changed an input of the call"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command on a planted file, in processes whose FlashInfer has this environment."""
    monkeypatch.chdir(tmp_path)
    Path("test_planted.py").write_text(textwrap.dedent(planted_tactics.FILE))
    Path("flashinfer-perf.toml").write_text('[thresholds]\n"bmm*" = { max_regret = "40%" }\n')
    beside = ["--budget", "1000", "--output", "out"]
    options = ["-k", "m8", "--perf-backends=auto", "--perf-device=cpu", "--perf-timeout=20", "-p", "no:cacheprovider"]

    def ran(*own, **environment):
        support = Path(scripted.__file__).parent
        environment["PYTHONPATH"] = os.pathsep.join((str(support), str(support / "no_cute_dsl")))
        for variable, value in environment.items():
            monkeypatch.setenv(variable, value)
        code, shown = tune_report.main([*own, *beside, "--", *options]), capsys.readouterr().out
        assert code == judge.FAILED, shown
        return shown

    return ran


def test_a_tactic_that_ends_its_process_costs_no_more_than_itself(run):
    shown = run("--tunes", "0", ENDS="3")
    assert f"fails            {RUNNER} 3: it ended its process with code 9" in shown
    assert f"FAIL {M8}: max_regret = 40%: default takes {RUNNER} default, +" in shown
    made = fields.read(Report, read_json(Path("out/tune-report.json")), "it")
    assert made.versions["flashinfer"]
    assert made.versions["gpu_uuid"] is None
    assert (made.cases[0].case, set(made.cases[0].best)) == (M8, {f"{RUNNER} 0", f"{RUNNER} 1"})


@pytest.mark.more
def test_tactics_that_hang_or_change_an_input_cost_no_more_than_themselves(run):
    shown = run("--tunes", "1", HANGS="3", SPOILS="2", PICKS="4")
    assert f"fails            {RUNNER} 3: {NO_END}" in shown
    assert f"fails            {RUNNER} 2: {CHANGED}" in shown
    assert f"FAIL {M8}: max_regret = 40%: tuned, 1 of 1 takes {RUNNER} 4, +" in shown
    made = fields.read(Report, read_json(Path("out/tune-report.json")), "it")
    assert set(made.cases[0].best) == {f"{RUNNER} 0", f"{RUNNER} 1"}


def test_a_tune_that_fails_is_named_and_fails(tmp_path, monkeypatch):
    said = {"tune 1": [{"case": M8, "outcome": "failed", "why": "no memory"}, {"case": M3, "picked": {}}], "race": []}
    monkeypatch.setattr(Runs, "_ran", lambda _self, _job, title: said[title])
    runs = Runs((), 1, TuneJob(), tmp_path)
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
        cases, lost = Runs((), 0, TuneJob(), tmp_path).cases()
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
    ("log", "code", "why"),
    [
        ("Timeout (0:00:08)!\n", 1, NO_END),
        ("", 1, "it ended its process with code 1"),
        ("", 86, "it left the GPU unusable"),
        ("", 87, CHANGED),
    ],
)
def test_what_ended_a_process_is_told_by_its_code_and_its_log(deaths, log, code, why):
    ends = [{"event": "end"}]
    assert deaths(([BEGINS, *TACTIC], code, log), (ends, 0, ""))[1][1] == {"b": {"R 1": why}}
