"""The command around a recorded program: its exit code, its signals, its folder, and who still writes there.

These programs write their pieces by hand: torch takes seconds to import.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.traffic import journal, launcher, pieces, recording

PIECE = """
import os, sys
from pytest_flashinfer_perf.extensions.traffic import hooks
from pytest_flashinfer_perf.extensions.traffic.journal import MappedJournal
from pytest_flashinfer_perf.extensions.traffic.pieces import head
piece = lambda: MappedJournal(f"{os.environ[hooks.FOLDER]}/{os.getpid()}-1.jsonl", head(0))
line = b'{"id":1,"call":{"api":"a.b","arguments":{}},"counts":[%d,0]}\\n'
"""
FULL = "piece().replace_head(head(7, 'it is full'))"
OUTLIVING = """
ready, there = os.pipe()
if os.fork():
    sys.exit(4 if os.read(ready, 1) else 5)
mine = piece()
mine.add(line % 10)
os.open("end", os.O_WRONLY)
os.write(there, b".")
open("go").read()
mine.add(line % 1010)
"""
RECORD = [sys.executable, "-m", "pytest_flashinfer_perf", "record", "-o", "t.jsonl", "--"]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "GRACE_S", 0.0)


def record(*words):
    return cli.main(["record", "-o", "t.jsonl", *words])


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["--", sys.executable, "-c", "pass"], 2, "(exit code 0) has called no decorated function"),
        (["--", sys.executable, "-c", "exit(3)"], 3, "(exit code 3) has called no decorated function"),
        (["--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 137, "has called no decorated function"),
        (["--", sys.executable, "-c", PIECE + FULL], 2, "(exit code 0) has left nothing to record"),
        (["--", sys.executable, "-c", PIECE + FULL], 2, "7 calls could not be written: it is full"),
        (["--", sys.executable, "-c", PIECE + "piece(); print(3)"], 2, "has called no decorated function"),
        (["--", "/no/such/program"], 2, "/no/such/program cannot be started"),
        (["--show", "t.jsonl"], 2, "t.jsonl: cannot be read"),
        (["--from", "."], 2, "has neither session.jsonl"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_is_said(capsys, words, code, sentence):
    assert record(*words) == code
    assert sentence in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_who_outlives_the_command_is_named_and_what_it_writes_is_kept(capsys):
    os.mkfifo("go")
    os.mkfifo("end")
    reading = os.open("end", os.O_RDONLY | os.O_NONBLOCK)
    assert record("--", sys.executable, "-c", PIECE + OUTLIVING) == 4
    said = capsys.readouterr().err
    [piece] = Path("t.jsonl.pieces").iterdir()
    pid = piece.name.partition("-")[0]
    assert "10 calls in t.jsonl" in said
    assert f"t.jsonl.pieces is still written to by the process {pid}: when they have ended, " in said
    assert record("--", "true") == 2
    assert f"is there, and still written to by the process {pid}: wait for them" in capsys.readouterr().err
    Path("go").write_text("")
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b""  # it has ended
    assert record("--", "true") == 2
    assert "of a run that was killed: read it by --from, or remove it" in capsys.readouterr().err
    assert record("--from", "t.jsonl.pieces") == 0
    assert recording.read(Path("t.jsonl")).head.calls == 1010


def test_a_command_that_records_to_the_same_file_now_is_named(capfd):
    assert record("--", *RECORD, "true") == 2
    assert "of a command that is recording now: give another -o" in capfd.readouterr().err


PASSED_ON = """
import os, signal
asked = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
assert not asked & signal.pthread_sigmask(signal.SIG_BLOCK, asked)
for one in asked:
    os.kill(os.getppid(), one)
    assert signal.sigwait(asked) == one
os._exit(9)
"""


def test_signals_that_a_process_sends_are_passed_on():
    done = subprocess.run([*RECORD, sys.executable, "-c", PASSED_ON], check=False, capture_output=True, text=True)
    assert done.returncode == 9, done.stderr


def test_a_recording_that_cannot_be_written_leaves_its_pieces(capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording.file_io, "write_whole", full)
    assert record("--", sys.executable, "-c", PIECE + "piece().add(line % 10); sys.exit(6)") == 6
    said = capsys.readouterr().err
    assert "t.jsonl: not written: [Errno 28] No space left on device; `flashinfer-perf record -o FILE --from " in said
    monkeypatch.undo()
    monkeypatch.chdir(Path(said.partition("--from ")[2].partition("`")[0]).parent)
    assert record("--from", "t.jsonl.pieces") == 0
    assert recording.read(Path("t.jsonl")).head.calls == 10


def test_files_that_memory_cannot_write_are_refused_before_the_program_runs(capsys, monkeypatch):
    monkeypatch.setattr(journal, "THERE", os.O_DIRECTORY)
    assert record("--", "touch", "started") == 2
    assert "files cannot be written there through memory: Not a directory" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


# The journal itself.


def test_a_journal_grows_and_ends_at_the_first_nul(tmp_path):
    made = journal.MappedJournal(str(tmp_path / "j"), b"head\n")
    lines = [b"%d" % nth * 40 + b"\n" for nth in range(3000)]
    for line in lines:
        made.add(line)
    made.replace_head(b"HEAD\n")
    text = (tmp_path / "j").read_bytes()
    assert text.rstrip(b"\0") == b"HEAD\n" + b"".join(lines)
    assert len(text) < 1.3 * len(text.rstrip(b"\0"))
    made.close()


def test_text_that_a_killed_process_did_not_finish_is_none(tmp_path, monkeypatch):
    made = journal.MappedJournal(str(tmp_path / "1-1.jsonl"), pieces.head(0))
    made.add(b'{"id":1}\n')
    store, stored = journal.MappedJournal._store, []

    def killed(self, at, text):
        stored.append(at)
        if len(stored) == 2:
            raise KeyboardInterrupt
        store(self, at, text)

    monkeypatch.setattr(journal.MappedJournal, "_store", killed)
    with pytest.raises(KeyboardInterrupt):
        made.add(b'{"id":2}\n')
    text = (tmp_path / "1-1.jsonl").read_bytes()
    assert text.partition(b"\0")[0] == pieces.head(0) + b'{"id":1}\n'
    assert b'"id":2' in text


@pytest.mark.parametrize("there", ["another file", "nothing"])
def test_another_file_of_its_name_is_not_written_to(tmp_path, there):
    made = journal.MappedJournal(str(tmp_path / "j"), b"head\n")
    made.add(b"x" * 5000)
    (tmp_path / "j").rename(tmp_path / "moved")
    if there == "another file":
        (tmp_path / "j").write_text("mine")
    with pytest.raises(OSError, match=r"Stale file handle|No such file"):
        made.add(b"y" * 9000)
    assert (tmp_path / "moved").read_bytes().rstrip(b"\0") == b"head\n" + b"x" * 5000
    assert there == "nothing" or (tmp_path / "j").read_text() == "mine"
