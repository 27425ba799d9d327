"""Programs that do to descriptors and processes what they like get nothing of the recorder."""

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
    assert ran.counts(name).get("mm", 0) == LOSING.get(name, PROGRAMS[name][1])


def test_a_process_that_could_not_write_its_last_calls_is_said(ran):
    """And one that was killed."""
    said = [line for line in ran.said.splitlines() if "was killed or could not write: its last calls may be" in line]
    assert len(said) == 2
    assert (ran.code, (ran.folder / "t.jsonl.pieces").exists()) == (0, False)
