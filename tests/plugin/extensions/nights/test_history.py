"""Changes of level in many stored runs; a spike is none."""

import json
import math
import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import MACHINE, row, saved

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.nights.levels import changes


def series(rng, *levels, sd=0.01):
    return [level + rng.gauss(0, sd) for level, count in levels for _ in range(count)]


def test_a_step_is_found_within_five_points_and_noise_is_no_step():
    rng = random.Random(8)
    found = false = 0
    for _ in range(200):
        steps = changes(series(rng, (0.0, 40), (0.03, 5)), least=0.0)
        found += any(abs(change.at - 40) <= 3 for change in steps)
        false += len(changes(series(rng, (0.0, 100)), least=0.0))
    assert found >= 180
    assert false <= 20  # of 20,000 points


@given(st.integers(0, 2**32), st.integers(0, 39), st.floats(0.05, 3.0), st.sampled_from([-1, 1]))
def test_a_single_spike_is_not_a_change(seed, at, height, sign):
    values = series(random.Random(seed), (0.0, 40), sd=0.002)
    values[at] += sign * height
    assert changes(values, least=0.01) == []


@given(st.integers(0, 2**32), st.floats(0.002, 0.006), st.integers(5, 30))
def test_a_drift_is_one_change_though_each_of_its_steps_may_be_small(seed, slope, start):
    rng = random.Random(seed)
    values = [slope * max(0, night - start) + rng.gauss(0, 0.004) for night in range(60)]
    [change] = changes(values, 0.02)
    assert change.is_drift
    assert change.after - change.before == pytest.approx(slope * (60 - start), rel=0.35)


@given(st.integers(0, 2**32), st.integers(6, 25), st.integers(6, 25))
def test_two_steps_in_one_direction_are_two_changes(seed, first, second):
    found = changes(series(random.Random(seed), (0.0, first), (0.03, second), (0.06, 15), sd=0.003), 0.01)
    assert [change.is_drift for change in found] == [False, False]


def test_levels_and_their_order():
    values = [0.0, 0.001] * 5 + [0.5, 0.501] * 5 + [0.2, 0.201] * 5
    assert [(change.at, round(change.after - change.before, 2)) for change in changes(values, 0.02)] == [
        (10, 0.5),
        (20, -0.3),
    ]
    assert changes(values, 0.4) == changes(values, 0.02)[:1]


@pytest.mark.parametrize("values", [[], [1.0] * 5, [1.0, 9.0, 1.0, 9.0, 1.0], [1.0] * 50])
def test_what_is_too_short_or_never_changed_says_nothing(values):
    assert changes(values, 0.0) == []


@pytest.fixture
def stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(5)
    for day in range(20):
        newer = day >= 12
        kernel = {"kernels": ["new" if newer else "old"]}
        level = 110.0 if newer else 100.0
        spike = 3.0 if day == 5 else 1.0
        rows = [
            row("decode/step", us=level * math.exp(rng.gauss(0, 0.002)), **kernel),
            row("decode/spike", us=100.0 * spike * math.exp(rng.gauss(0, 0.002))),
            row("decode/clock", us=100 + day, bound="compute", cycles=18e4 + rng.gauss(0, 200), sm_ghz=1.8),
            *([row("decode/rare")] if day < 2 else []),
        ]
        machine = {**MACHINE, "driver": "590" if newer else "580", "flashinfer": "0.7.3" if newer else "0.7.2"}
        # Files are ordered by their dates, not by their names.
        path = tmp_path / "runs" / f"{19 - day:04}_nightly.json"
        saved(path, *rows, when=f"2026-11-{day + 1:02}T03:00:00+00:00", machine=machine, commit=f"{day:040}")
    return tmp_path


@pytest.mark.usefixtures("stored")
def test_history_says_when_by_how_much_and_what_else_changed(capsys):
    assert cli.main(["history", "runs"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "decode/step on GPU-0, 20 runs 2026-11-13 03:00: +9.66 % in time" in told
    assert "since runs/0007_nightly.json, commit 0000000000" in told
    for beside in ("flashinfer 0.7.2 -> 0.7.3", "driver 580 -> 590", "now runs another kernel: old -> new"):
        assert beside in told
    assert "1 with fewer than 6 runs" in told
    assert told.endswith("4 series from 20 runs, 1 of them changed")


@pytest.mark.usefixtures("stored")
def test_history_says_the_same_as_json(capsys):
    assert cli.main(["history", "runs", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    [changed] = [one for one in told["series"] if one["changes"]]
    [change] = changed.pop("changes")
    assert changed == {"case": "decode/step", "gpu_uuid": "GPU-0", "domain": "time", "runs": 20, "long_enough": True}
    assert (change["source"], change["when"]) == ("runs/0007_nightly.json", "2026-11-13T03:00:00+00:00")
    assert f"{change['change']:+.2%}" == "+9.66%"
    assert "driver 580 -> 590" in change["beside"]
    assert (told["runs"], len(told["series"]), told["failures"]) == (20, 4, [])


def test_what_a_busy_machine_measured_is_no_level(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for busy, code in (({"seconds": 1.0, "cores": 2, "waited": 0.9}, 0), (None, 1)):
        for day in range(1, 21):
            slow = {"us": 900.0 + day, "contention": busy} if day > 12 else {"us": 100.0 + day / 10}
            saved(
                tmp_path / f"{day}.json", row("own", instrument="wall", **slow), when=f"2026-11-{day:02}T03:00:00+00:00"
            )
        assert cli.main(["history", "."]) == 0
        assert f"{code} of them changed" in capsys.readouterr().out


def test_a_drift_is_told_with_where_it_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for day in range(28):
        one = row(us=100 * math.exp(0.004 * min(max(0, day - 8), 12)) + day % 2 / 10)
        saved(tmp_path / "runs" / f"{day:02}.json", one, when=f"2026-11-{day + 1:02}T03:00:00+00:00")
    assert cli.main(["history", "runs"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\+[45]\.\d\d % in time, since runs/(09|1\d).json, creeping until runs/(1\d|20).json", told)


@pytest.mark.parametrize(("cuda_graph", "told"), [(True, "+50.00 % in gaps"), (False, "none of them changed")])
def test_gaps_between_the_kernels_of_a_graph_have_a_level_too(cuda_graph, told, tmp_path, capsys):
    """Those of launches are the host's, and change with its load."""
    for day in range(12):
        one = row(us=60 if day < 6 else 90, busy=50, cuda_graph=cuda_graph)
        saved(tmp_path / f"{day:02}.json", one, when=f"2026-11-{day + 1:02}T03:00:00+00:00")
    assert cli.main(["history", str(tmp_path)]) == 0
    assert told.replace("none", "0") in capsys.readouterr().out


def test_what_failed_in_the_newest_run_of_a_host_is_worse(stored, capsys):
    failed = [{"case": "decode/step", "outcome": "failed", "reason": "wrong answer"}]
    for day, code in (("01", 0), ("28", 1)):
        saved(stored / "runs" / "more.json", when=f"2026-11-{day}T09:00:00+00:00", unmeasured=failed)
        assert cli.main(["history", "runs"]) == code
    assert "decode/step, failed: runs/more.json: wrong answer" in capsys.readouterr().out
    saved(stored / "runs" / "other.json", when="2026-11-29T09:00:00+00:00", machine={**MACHINE, "node": "b"})
    assert cli.main(["history", "runs"]) == 1


def test_its_threshold_is_the_settings_files(stored, capsys):
    (stored / "flashinfer-perf.toml").write_text('[thresholds]\n"*" = { slower = "20%" }\n')
    assert cli.main(["history", "runs"]) == 0
    assert "0 of them changed" in capsys.readouterr().out


def test_too_little_history_is_no_answer(tmp_path, capsys):
    saved(tmp_path / "a.json", row(), row("broken", us=None))
    assert cli.main(["history", str(tmp_path)]) == 2
    assert "1 with fewer than 6 runs" in capsys.readouterr().out
    assert cli.main(["history", str(tmp_path / "none")]) == 2
    assert "no such file or folder" in capsys.readouterr().err
