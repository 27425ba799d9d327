"""Commands that start several processes refuse a FlashInfer that lacks what it requires."""

import shlex
import sys

import distributions
import pytest
from distributions import OLD

from pytest_flashinfer_perf import cli


@pytest.mark.parametrize("command", ["ab", "prove"])
def test_an_incomplete_side_is_refused_before_anything_is_measured(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    python = shlex.quote(sys.executable)
    complete, incomplete = (f"env PYTHONPATH={shlex.quote(str(one))} {python}" for one in distributions.sides(tmp_path))
    own = {"ab": ["--base", complete, "--head", incomplete], "prove": ["--python", incomplete]}[command]
    words = [command, *own, "--output=out"]
    assert cli.main([*words, "--", "--perf-device=cpu", "nowhere.py"]) == 2
    name = {"ab": "head", "prove": "python"}[command]
    cure = "install it, or admit it with --perf-gate-allow=requirements"
    assert f"{name}: FlashInfer is incomplete: {OLD}: {cure}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.main([*words, "--perf-gate-allow=requirements", "--", "--perf-device=cpu", "nowhere.py"]) == 2
    told = capsys.readouterr().err
    assert f"{name}: FlashInfer is incomplete: {OLD}\n" in told
    assert "nowhere.py" in told
