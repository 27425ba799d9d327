"""Programs that do to descriptors, processes, root and user what they like get nothing of the recorder.

One recorded process imports torch once, and forks each of them.
"""

import sys
from collections import Counter
from pathlib import Path

import hostile_programs
import pytest
from hostile_programs import LOSING, PROGRAMS, SERVER
from known_calls import CALLS

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.traffic import recording

NAMES = list(PROGRAMS)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder in which all of them ran, with a folder for each, the recording, and what was said."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "calls.py").write_text(CALLS)
    (folder / "server.py").write_text(SERVER)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(Path(hostile_programs.__file__).parent))
        assert cli.main(["record", "-o", "t.jsonl", "--", sys.executable, "server.py", *NAMES]) == 0
    return folder


@pytest.fixture(scope="module")
def counts(ran):
    """How many calls of each are in the recording."""
    made = Counter()
    for call in recording.read(ran / "t.jsonl").calls:
        made[NAMES[int(call.arguments["scale"] - 1.5)]] += call.count
    return made


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_its_own_reaches_a_program_and_its_calls_are_recorded(ran, counts, name):
    files = [path for path in (ran / name).rglob("*") if path.is_file()]
    assert {path.name: path.read_text().replace("mine", "") for path in files} == dict.fromkeys(
        (path.name for path in files), ""
    )
    assert (ran / f"{name}.status").read_text() == "0"
    if name in LOSING:
        assert LOSING[name] <= counts[name] < PROGRAMS[name][1]
    else:
        assert counts[name] == PROGRAMS[name][1]


def test_each_call_that_is_lost_is_counted(ran, counts):
    lost = sum(made for _, made in PROGRAMS.values()) - counts.total()
    assert recording.read(ran / "t.jsonl").head.dropped == lost > 0
    assert not (ran / "t.jsonl.pieces").exists()
