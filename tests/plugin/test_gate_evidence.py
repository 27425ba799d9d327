"""What the gate is tried with on a GPU: kernels made slower, and the tables of what was found."""

import json
import math

import gate_evidence
import pytest
from made import row, run

from pytest_flashinfer_perf import fixture, walk
from pytest_flashinfer_perf.gate import document, runs
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.verdict import Rules

LINE = "--routine bmm_fp8 --backends torch --batch_size 1 --m 4 --n 16 --k 16\n"


def test_a_kernel_is_slowed_down_by_its_share_of_an_earlier_run(pytester, monkeypatch):
    monkeypatch.setattr(fixture, "walk", fixture.walk)
    monkeypatch.setattr(walk, "measure_target", walk.measure_target)
    monkeypatch.setenv("SLOW_DOWN_BY", "9")
    monkeypatch.setenv("SLOW_DOWN_FROM", "base.json")
    pytester.makefile(".txt", lines=LINE)
    options = ("lines.txt", "--import-mode=importlib", "-p", "no:cacheprovider", "--perf-iters=9", "--perf-device=cpu")
    pytester.runpytest(*options, "--benchmark-json=base.json").assert_outcomes(passed=1)
    pytester.runpytest(*options, "--benchmark-json=head.json", "-p", "slow_down").assert_outcomes(passed=1)
    [base], [head] = (runs.read([pytester.path / name])[0].rows.values() for name in ("base.json", "head.json"))
    [planted] = json.loads((pytester.path / "base.json.planted-9.json").read_text()).values()
    assert planted["planted_us"] == pytest.approx(9 * base.median * 1e6)
    assert head.median > planted["planted_us"] * 1e-6


def test_the_tables_say_what_was_found(tmp_path, capsys, monkeypatch):
    before = [row("a", us=40.0), row("b", us=100.0), row("c", us=200.0, bound="compute", cycles=36e4, sm_ghz=1.8)]
    after = [row("a", us=40.2), row("b", us=110.0), row("c", us=220.0, bound="compute", cycles=39.6e4, sm_ghz=1.8)]
    judgement = judge([run(*before, row("gone"))] * 2, [run(*after)] * 2, Rules(paired=True))
    (tmp_path / "verdicts.json").write_text(document.text(judgement))
    session = {"pair_s": [20.0, 22.0], "wall_s": 43.2, "base": ["a/python"], "head": ["b/python"], "arguments": ["-q"]}
    (tmp_path / "session.json").write_text(json.dumps(session))
    planted = {name: {"median_us": us, "planted_us": us / 10} for name, us in (("a", 40), ("b", 100), ("c", 200))}
    (tmp_path / "planted.json").write_text(json.dumps(planted))
    monkeypatch.setattr("sys.argv", ["gate_evidence.py", f"{tmp_path}={tmp_path / 'planted.json'}"])
    gate_evidence.main()
    shown = capsys.readouterr().out
    for line in (
        "2 SLOWER, 1 MISSING, 1 SAME: something got worse. 2 pairs in 43 s; a case took",
        "| all | memory | 10.00 to 10.00 % | 0.50 to 10.00 % | 1 of 2 (50 %) |",
        "| 50 us and more | memory | 10.00 to 10.00 % | 10.00 to 10.00 % | 1 of 1 (100 %) |",
        "| 150 us and more | compute | 10.00 to 10.00 % | 10.00 to 10.00 % | 1 of 1 (100 %) |",
    ):
        assert line in shown.splitlines()
    assert "| b | memory | time | 100 us | 110 us | +10.00 % |" in shown
    assert gate_evidence.percent(math.log(1.02)) == "+2.00 %"
