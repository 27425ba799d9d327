"""Processes that a command starts and waits for: with which words, where, and what is read of them."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made import row, saved
from stand_in_pytest import environment

from pytest_flashinfer_perf.session import processes
from pytest_flashinfer_perf.session.processes import Environment


@pytest.fixture
def where(tmp_path):
    return environment(tmp_path, MINE="1")


def test_pytest_gets_its_words_and_its_rows_are_read(where):
    saved(where.folder / "rows.json", row("a"), machine={})
    done = processes.ran(where, ["-k", "a b"], where.folder / "pair", ["t.py::test_a"])
    words, mine, there = json.loads((where.folder / "words.json").read_text())
    only = f"--perf-only={where.folder / 'pair.only'}"
    assert words == ["-k", "a b", f"--benchmark-json={where.folder / 'pair.json'}", only]
    assert (mine, there) == ("1", str(where.folder))
    assert (where.folder / "pair.only").read_text() == "t.py::test_a\n"
    assert (done.code, done.failed, len(done.run.rows), done.log.read_text()) == (0, False, 1, "first\nlast\n")


def test_a_process_that_prints_into_a_log_is_said_to_run_every_half_minute(tmp_path, capsys, monkeypatch):
    ends = iter([subprocess.TimeoutExpired("pip", 30), subprocess.TimeoutExpired("pip", 30), 7])

    class Process(contextlib.nullcontext):
        def wait(self, seconds=None):
            assert seconds == 30
            ended = next(ends)
            log.write_text("first\ncase 2 of 9\n" * bool(clocked))
            clocked.append(1)
            if isinstance(ended, Exception):
                raise ended
            return ended

    clock = iter([0.0, 30.0, 60.0])
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(clock))
    process = Process()
    log, clocked = tmp_path / "pip.log", []
    monkeypatch.setattr(processes.subprocess, "Popen", lambda *_, **__: contextlib.nullcontext(process))
    assert processes.started(processes.Environment("pip", ("pip",)), log=log) == 7
    silent, told = capsys.readouterr().err.splitlines()
    assert silent == f"  30 s so far, what it prints is in {log}"
    assert told == f"  60 s so far, what it prints is in {log}: case 2 of 9"


WAITS = """
import sys
from pytest_flashinfer_perf.session.processes import Environment, started

started(Environment("child", ("sh", "-c", "echo begins; exec sleep 100")))
"""


def test_what_a_command_waits_for_ends_with_it():
    """As by `timeout`, or a job that is cancelled. The pipe ends with the last process that has it."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout.readline() == "begins\n"
        command.send_signal(signal.SIGTERM)
        assert command.stdout.read() == ""
        assert command.wait() == 128 + signal.SIGTERM


def test_a_process_of_a_command_writes_no_summary_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    here = Environment("x", ("bash", "-c", 'test -z "$GITHUB_STEP_SUMMARY"'))
    assert processes.started(here, log=Path(tmp_path, "log")) == 0


def test_words_behind_two_hyphens_are_pytests():
    assert processes.split(["--pairs", "3", "--", "-k", "--"]) == (["--pairs", "3"], ["-k", "--"])
    assert processes.split(["-v"]) == (["-v"], [])


STARTS_A_LARGE_ONE = """
import subprocess, sys
large = "import os; memory = bytearray(b'x') * (256 << 20); print(os.getpid(), flush=True); input()"
subprocess.run([sys.executable, "-c", large])
"""


def test_no_process_of_a_group_is_left_also_one_that_takes_long_to_end():
    """Its memory is given back after it was killed, and after its parent has ended."""
    own = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", STARTS_A_LARGE_ONE], **own) as process:
        status = Path(f"/proc/{int(process.stdout.readline())}/status")
        assert status.exists()
        assert processes.end_group(process) == -signal.SIGKILL
        assert not status.exists() or "State:\tZ" in status.read_text()


def test_it_has_arguments_and_variables_and_its_error_is_named():
    assert processes.answer("import os, sys; print(sys.argv[1] + os.environ['HERE'])", "7", HERE="8") == "78"
    with pytest.raises(processes.NoAnswerError, match=r"^ZeroDivisionError: division by zero$"):
        processes.answer("1 / 0")
    with pytest.raises(processes.NoAnswerError, match="it ended with 3"):
        processes.answer("import os; os._exit(3)")
