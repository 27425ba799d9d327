"""Commands that start several processes refuse a FlashInfer that lacks what it requires."""

import shlex
import sys

import distributions
from distributions import OLD

from pytest_flashinfer_perf import cli


def test_an_incomplete_side_is_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    python = shlex.quote(sys.executable)
    complete, incomplete = (f"env PYTHONPATH={shlex.quote(str(one))} {python}" for one in distributions.sides(tmp_path))
    words = ["ab", "--base", complete, "--head", incomplete, "--output=out"]
    assert cli.main([*words, "--", "--perf-device=cpu", "nowhere.py"]) == 2
    cure = "install it, or admit it with --perf-gate-allow=requirements"
    assert f"head: FlashInfer is incomplete: {OLD}: {cure}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.main([*words, "--perf-gate-allow=requirements", "--", "--perf-device=cpu", "nowhere.py"]) == 2
    told = capsys.readouterr().err
    assert f"head: FlashInfer is incomplete: {OLD}\n" in told
    assert "nowhere.py" in told
