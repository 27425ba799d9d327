"""The tables of what was found on a GPU."""

import json
import math

import gate_evidence
from made import row, run

from pytest_flashinfer_perf.gate import document
from pytest_flashinfer_perf.gate import proof as proof_shown
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.proof import prove
from pytest_flashinfer_perf.gate.verdict import Rules


def test_the_tables_say_what_was_found(tmp_path, capsys, monkeypatch):
    before = [row("a", us=40.0), row("b", us=100.0), row("c", us=200.0, bound="compute", cycles=36e4, sm_ghz=1.8)]
    after = [row("a", us=40.2), row("b", us=110.0), row("c", us=220.0, bound="compute", cycles=39.6e4, sm_ghz=1.8)]
    judgement = judge([run(*before, row("gone"))] * 2, [run(*after)] * 2, Rules(paired=True))
    (tmp_path / "verdicts.json").write_text(document.text(judgement))
    session = {"pair_s": [20.0, 22.0], "wall_s": 43.2, "base": ["a/python"], "head": ["b/python"], "arguments": ["-q"]}
    (tmp_path / "session.json").write_text(json.dumps(session))
    monkeypatch.setattr("sys.argv", ["gate_evidence.py", str(tmp_path)])
    gate_evidence.main()
    shown = capsys.readouterr().out
    assert "\n3 of 4 judged, 2 SLOWER, 1 MISSING, 1 SAME: something got worse. 2 pairs in 43 s; a case took\n" in shown
    assert "| b | memory | time | 100 us | 110 us | +10.00 % |" in shown
    assert gate_evidence.percent(math.log(1.02)) == "+2.00 %"


def test_the_tables_say_what_was_found_of_what_was_planted(tmp_path, capsys, monkeypatch):
    plain = [row("a", us=4.0), row("b", us=100.0)]
    planted = [row("a", us=6.4, planted_us=2.0), row("b", us=150.0, planted_us=50.0)]
    processes = ([run(*side, source=f"{n}.json") for n in range(3)] for side in (plain, planted))
    proof = prove(*processes, Rules())
    (tmp_path / "proof.json").write_text(proof_shown.document(proof))
    (tmp_path / "proof.md").write_text(proof_shown.markdown(proof))
    monkeypatch.setattr("sys.argv", ["gate_evidence.py", str(tmp_path)])
    gate_evidence.main()
    shown = capsys.readouterr().out.splitlines()
    assert "### flashinfer-perf prove: the gate keeps its promise here" in shown
    for line in (
        "| all | memory | 50.00 to 50.00 % | 50.00 to 60.00 % | 18 of 18 (100.0 %) |",
        "| 5 us and more | memory | 50.00 to 50.00 % | 50.00 to 50.00 % | 9 of 9 (100.0 %) |",
    ):
        assert line in shown
