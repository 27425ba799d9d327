"""Processes that a command starts and waits for."""

import signal
import subprocess
import sys
import time
from pathlib import Path

WAITS = """
import sys
from pytest_flashinfer_perf.launch.processes import Environment, started

child = "import os, time; print(os.getpid(), flush=True); time.sleep(120)"
started(Environment("child", (sys.executable, "-c", child)))
"""


def is_there(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_what_a_command_waits_for_ends_with_it():
    """As by `timeout`, or a job that is cancelled: the child would go on, on the GPU of whoever comes next."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as command:
        child = int(command.stdout.readline())
        assert is_there(child)
        command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=30) == 128 + signal.SIGTERM
    ends = time.monotonic() + 30
    while is_there(child) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not is_there(child)
