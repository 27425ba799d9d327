"""What `make bench` shows without a GPU."""

import re
import subprocess
import sys

import first_screen
import pytest
import scripted
from documents import ROOT

from pytest_flashinfer_perf.engine import instruments, timing
from pytest_flashinfer_perf.extensions.planting import planted_work
from pytest_flashinfer_perf.machine.load import Contention


class Planted(scripted.Scripted):
    """Its calls last as long as the script says, and the work that is planted in them."""

    extra = 0.0

    def plant(self, seconds):
        self.extra = seconds

    def seconds_of(self, answer):
        took, self.extra = super().seconds_of(answer) + self.extra, 0.0
        return took


@pytest.fixture
def screen(monkeypatch, tmp_path, capsys):
    """Shows it by a scripted clock."""
    clock = Planted()
    monkeypatch.setitem(instruments.INSTRUMENTS, "wall", clock)
    monkeypatch.setattr(planted_work, "_busy", clock.plant)

    def show():
        code = first_screen.FirstScreen(tmp_path).show()
        return code, capsys.readouterr().out.splitlines()

    return show


def test_a_table_of_two_backends_the_gate_at_work_and_what_to_do_next(screen, tmp_path):
    code, lines = screen()
    text = "\n".join(lines)
    assert code == 0, text
    assert len(lines) <= 60
    assert all(len(line) <= 80 for line in lines if str(tmp_path) not in line and first_screen.BIN not in line)
    assert lines[0].startswith("no NVIDIA GPU here: torch alone is measured")
    assert re.search(r"^\* torch +1\.000 ms.*\n[* ] by-hand +1\.000 ms", text, re.MULTILINE)
    same, slower = text.split("exit code 0")
    assert "SLOWER" not in same
    assert re.search(r"SLOWER \(1\)\n +test_first.py::test_rmsnorm\[256\]\n.*time \+50.*\n(.*\n)*exit code 1", slower)
    assert (tmp_path / "first.html").stat().st_size
    assert all(command in line for line, (command, _) in zip(lines[-3:], first_screen.NEXT, strict=True))


def test_on_a_busy_machine_it_says_that_nothing_could_be_judged_and_what_that_means(screen, monkeypatch):
    busy = Contention(seconds=1.0, cores=2, waited=0.9, load=5.0)
    monkeypatch.setattr(timing.load, "during", lambda *_: busy)
    monkeypatch.setattr(first_screen, "ENOUGH_S", 0.0)
    monkeypatch.setattr(first_screen, "SESSIONS", 1)
    code, lines = screen()
    assert (code, lines.count("exit code 2")) == (0, 2)
    assert "This machine was too busy to judge all: exit code 2 says that such a comparison" in lines
    assert len(lines) <= 60


@pytest.mark.more
def test_it_is_one_screen(tmp_path):
    """What it takes depends on the machine: one that is loaded is asked again."""
    command = [sys.executable, "tools/first_screen.py", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) <= 60
