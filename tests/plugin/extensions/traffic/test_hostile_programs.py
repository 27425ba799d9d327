"""Programs that do to descriptors, processes, root and user what they like get nothing of the recorder."""

import known_calls
import pytest
from hostile_programs import LOSING, PROGRAMS

CALL = """
def call(times, each=False):
    for nth in range(times): mm(A, A, out=[nth] if each else None)
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        texts = {name: f"{CALL}\n{text}" for name, (text, _) in PROGRAMS.items()}
        return known_calls.recorded(folder, texts, first="exec(calls, globals())")


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_but_its_own_reaches_a_program_and_its_calls_are_recorded(ran, name):
    assert ran.status(name) == 0
    files = [path for path in (ran.folder / name).rglob("*") if path.is_file()]
    assert [path.name for path in files if path.read_text().replace("mine", "")] == []
    made, count = PROGRAMS[name][1], ran.counts(name).get("mm", 0)
    assert LOSING[name] <= count < made if name in LOSING else count == made


def test_each_call_that_is_lost_is_counted(ran):
    made, head = sum(made for _, made in PROGRAMS.values()), ran.recording.head
    assert head.calls + head.dropped == made
    assert head.dropped > 0
    assert (ran.code, (ran.folder / "t.jsonl.pieces").exists()) == (0, False)
