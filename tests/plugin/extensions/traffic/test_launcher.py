"""The command around a recorded program: its exit code, its signals, its folder, and who still writes there.

These programs write their pieces by hand: torch takes seconds to import.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.traffic import launcher, recording

PIECE = """
import os, sys
from pytest_flashinfer_perf.extensions.traffic import hooks, pieces
path = f"{os.environ[hooks.FOLDER]}/{os.getpid()}-1.jsonl"
line = b'{"id":1,"call":{"api":"a.b","arguments":{}},"counts":[%d,0],"samples":[]}\\n'
def add(count, end=b""):
    pieces.append(path, line % count + end, os.path.getsize(path) if os.path.exists(path) else 0)
"""
OUTLIVING = """
ready, there = os.pipe()
if os.fork():
    sys.exit(4 if os.read(ready, 1) else 5)
path = path.replace(str(os.getppid()), str(os.getpid()))
add(10)
os.open("end", os.O_WRONLY)
os.write(there, b".")
open("go").read()
add(1010, pieces.ENDED)
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
        (["--", "/no/such/program"], 2, "/no/such/program cannot be started"),
        (["--from", "nowhere"], 2, "nowhere: is no folder with the pieces of a recording"),
    ],
)
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
    assert "10 calls in t.jsonl" in said
    assert "still recorded are the processes " in said
    Path("go").write_text("")
    os.set_blocking(reading, True)
    assert os.read(reading, 1) == b""  # it has ended
    assert record("--from", "t.jsonl.pieces") == 0
    assert recording.read(Path("t.jsonl")).head.calls == 1010
    assert record("--", "true") == 2
    assert "t.jsonl.pieces is there, of a command that records now or was killed" in capsys.readouterr().err


PASSED_ON = """
import os, signal
asked = {signal.SIGTERM, signal.SIGHUP}
assert not asked & signal.pthread_sigmask(signal.SIG_BLOCK, asked)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
for one in asked:
    os.kill(os.getppid(), one)
    assert signal.sigwait(asked) == one
os.kill(os.getppid(), signal.SIGINT)
os._exit(9)
"""


def test_signals_to_end_are_passed_on_and_those_of_a_terminal_do_not_end_the_command():
    done = subprocess.run([*RECORD, sys.executable, "-c", PASSED_ON], check=False, capture_output=True, text=True)
    assert done.returncode == 9, done.stderr


def test_a_command_leaves_the_handlers_of_signals_as_they_were():
    before = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    record("--", "true")
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)] == before


def test_a_recording_that_cannot_be_written_leaves_its_pieces(capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recording.file_io, "write_whole", full)
    assert record("--", sys.executable, "-c", PIECE + "add(10, pieces.ENDED); sys.exit(6)") == 6
    said = capsys.readouterr().err
    assert "t.jsonl: not written: [Errno 28] No space left on device; `flashinfer-perf record -o FILE --from " in said
    monkeypatch.undo()
    monkeypatch.chdir(Path(said.partition("--from ")[2].partition("`")[0]).parent)
    assert record("--from", "t.jsonl.pieces") == 0
    assert recording.read(Path("t.jsonl")).head.calls == 10
