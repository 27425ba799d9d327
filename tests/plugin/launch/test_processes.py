"""Processes that a command starts and waits for: with which words, where, and what is read of them."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made import row, saved

from pytest_flashinfer_perf.launch import processes
from pytest_flashinfer_perf.launch.processes import Environment, Pairs
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.run_file import RunError

# Stands for pytest: writes down its words, and the file of rows that a test has put beside it.
PYTEST = """
import json, os, shutil, sys
from pathlib import Path

words = sys.argv[1:]
Path("words.json").write_text(json.dumps([words, os.environ.get("MINE"), os.getcwd()]))
[output] = [word.partition("=")[2] for word in words if word.startswith("--benchmark-json=")]
if Path("rows.json").exists():
    shutil.copy("rows.json", output)
print("first\\nlast")
sys.exit(int(Path("code").read_text()))
"""


@pytest.fixture
def where(tmp_path):
    (tmp_path / "pytest.py").write_text(PYTEST)
    (tmp_path / "code").write_text("0")
    return Environment("base", (sys.executable, "pytest.py"), tmp_path, {"MINE": "1"})


def test_pytest_gets_its_words_and_its_rows_are_read(where):
    saved(where.folder / "rows.json", row("a"), machine={})
    done = processes.ran(where, ["-k", "a b"], where.folder / "pair", ["t.py::test_a"])
    words, mine, there = json.loads((where.folder / "words.json").read_text())
    only = f"--perf-only={where.folder / 'pair.only'}"
    assert words == ["-k", "a b", f"--benchmark-json={where.folder / 'pair.json'}", only]
    assert (mine, there) == ("1", str(where.folder))
    assert (where.folder / "pair.only").read_text() == "t.py::test_a\n"
    assert (done.code, done.failed, len(done.run.rows), done.log.read_text()) == (0, False, 1, "first\nlast\n")


@pytest.mark.parametrize(("code", "count"), [(0, 1), (1, 1), (1, 0)])
def test_a_run_has_measured_even_if_tests_or_all_of_them_failed(where, capsys, code, count):
    (where.folder / "code").write_text(str(code))
    if count:
        saved(where.folder / "rows.json", row("a"), machine={})
    assert processes.measured(where, [], where.folder / "x", title="base").code == code
    assert re.search(rf"base: {count} cases? in ", capsys.readouterr().err)


@pytest.mark.parametrize(("code", "sentence"), [(0, "measured nothing"), (3, "exited with code 3")])
def test_what_did_not_measure_is_an_error_with_the_end_of_its_log(where, code, sentence):
    (where.folder / "code").write_text(str(code))
    if code:
        saved(where.folder / "rows.json", row("a"), machine={})
    with pytest.raises(RunError, match=rf"{sentence}, full log: .*x\.log\n(.*\n)*last"):
        processes.measured(where, [], where.folder / "x")


def test_an_environment_is_a_folder_a_python_or_a_command(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch(mode=0o755)
    module = ("-m", "pytest")
    assert processes.environment("base", str(tmp_path)).command == (str(python), *module)
    assert processes.environment("base", str(python)).command == (str(python), *module)
    assert processes.environment("base", "env A=1 python3").command == ("env", "A=1", "python3", *module)
    assert processes.environment("base", "sh -c x").command == ("sh", "-c", "x")
    for wrong in ("", "nothing-like-this --x", "sh '", str(tmp_path / "bin")):
        with pytest.raises(RunError, match=f"--base={wrong}: is not a virtual environment, a Python or a command"):
            processes.environment("base", wrong)


def test_a_program_is_asked_where_a_python_is_named():
    here = Environment("here", (sys.executable, *processes.MODULE))
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    assert processes.asked(here, program, "a", "b") == ["a", "b"]
    assert processes.asked(Environment("here", ("sh", "-c", "x")), program) is None
    with pytest.raises(RunError, match="here: its Python does not answer: ZeroDivisionError"):
        processes.asked(here, "1 / 0")
    with pytest.raises(RunError, match="here: its Python does not answer: it prints 'x"):
        processes.asked(here, "print('x')")


def test_words_are_split_logged_and_say_the_device(tmp_path):
    assert processes.split(["--pairs", "3", "--", "-k", "--"]) == (["--pairs", "3"], ["-k", "--"])
    assert processes.split(["-v"]) == (["-v"], [])
    assert processes.gpu(["--perf-device=cpu", "x.py"]) is None
    with pytest.raises(RunError, match=r"no device to measure on: .*there is no device cuda:99"):
        processes.gpu(["-k", "x", "--perf-device=cuda:99"])
    processes.logged(["sh", "-c", "echo well"], tmp_path / "logs" / "a.log")
    with pytest.raises(RunError, match=r"ended with code 3, all of it in .*b\.log:\nbadly"):
        processes.logged(["sh", "-c", "echo badly; exit 3"], tmp_path / "logs" / "b.log")


def test_a_folder_for_results_is_new_or_empty(tmp_path):
    made = processes.folder(tmp_path / "new", "ab")
    assert processes.folder(made, "ab") == made
    (made / "x").touch()
    with pytest.raises(RunError, match="the folder is not empty, name a new one"):
        processes.folder(made, "ab")


def test_a_run_of_another_gpu_than_the_locked_one_is_refused(tmp_path):
    saved(tmp_path / "x.json", row("a"), machine={})
    run = run_file.parse(run_file.load(tmp_path / "x.json"), "x.json")
    processes.verify(run, "GPU-0")
    with pytest.raises(RunError, match=r"x\.json was measured on GPU-0, the CPU is locked: choose the GPU with CUDA_"):
        processes.verify(run, None)


def test_every_second_pair_begins_with_the_second_side():
    seen = []
    pairs = Pairs(("base", "head"), lambda side, nth, cases: seen.append((side, nth, cases)) or side)
    assert [pairs(0), pairs(1, frozenset("a"))] == [("base", "head")] * 2
    assert seen == [("base", 0, None), ("head", 0, None), ("head", 1, {"a"}), ("base", 1, {"a"})]
    assert len(pairs.seconds) == 2


WAITS = """
import sys
from pytest_flashinfer_perf.launch.processes import Environment, started

started(Environment("child", ("sh", "-c", "echo begins; exec sleep 100")))
"""


def test_what_a_command_waits_for_ends_with_it():
    """As by `timeout`, or a job that is cancelled. The pipe ends with the last process that has it."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout.readline() == "begins\n"
        command.send_signal(signal.SIGTERM)
        assert command.stdout.read() == ""
        assert command.wait() == 128 + signal.SIGTERM


def test_a_process_that_shows_what_it_does_has_this_terminal_and_no_summary_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    says = 'test -z "$GITHUB_STEP_SUMMARY" && echo shown >&"$FLASHINFER_PERF_TERMINAL"'
    for shows, code in ((True, 0), (False, 1)):
        here = Environment("x", ("bash", "-c", f"{says} || exit 1"), shows=shows)
        assert processes.started(here, log=Path(tmp_path, "log")) == code
