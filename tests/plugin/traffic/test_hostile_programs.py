"""Programs that do to descriptors, processes, root and user what they like get nothing of the recorder.

One recorded process imports torch once and forks each of them.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest
from hostile_programs import IN_SHORT, PROGRAMS, SERVER
from known_calls import CALLS

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.traffic import recording

SUPPORT = Path(__file__).parents[1] / "support"


def recorded(folder, names, capfd):
    """How many calls the recording has of each program, and how many were lost."""
    (folder / "calls.py").write_text(CALLS)
    (folder / "server.py").write_text(SERVER)
    command = [sys.executable, "server.py", *names]
    assert cli.main(["record", "-o", "t.jsonl", "--", *command]) == 0
    out, err = capfd.readouterr()
    assert out.split() == [word for name in names for word in (name, "0")]
    made, counts = recording.read(Path("t.jsonl")), Counter()
    for call in made.calls:
        counts[names[int(call.arguments["scale"] - 1.5)]] += call.count
    return counts, made.head.dropped, err


@pytest.mark.parametrize("names", [IN_SHORT, pytest.param(tuple(PROGRAMS), marks=pytest.mark.more)], ids=len)
def test_nothing_but_its_own_reaches_a_program(names, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    counts, lost, said = recorded(tmp_path, names, capfd)
    for path in (path for name in names for path in (tmp_path / name).rglob("*")):
        assert path.read_text().replace("mine", "") == "", path
    for name in names:
        of_it = PROGRAMS[name][1]
        assert counts[name] in (of_it if isinstance(of_it, range) else [of_it]), (name, counts[name])
    assert (lost > 0) == ("could not be written" in said)
    assert not Path("t.jsonl.pieces").exists()
