"""The processes of two sides: what counts as measured, where they run, on which device."""

import fcntl
import io
import re
import sys
import tempfile

import pytest
from made import row, saved
from stand_in_pytest import environment

from pytest_flashinfer_perf.extensions.compare import sides
from pytest_flashinfer_perf.rows import run_file
from pytest_flashinfer_perf.rows.run_file import RunError
from pytest_flashinfer_perf.session import processes
from pytest_flashinfer_perf.session.processes import Environment


@pytest.fixture
def where(tmp_path):
    return environment(tmp_path)


@pytest.mark.parametrize(("code", "count"), [(0, 1), (1, 1), (1, 0)])
def test_a_run_has_measured_even_if_tests_or_all_of_them_failed(where, capsys, code, count):
    (where.folder / "code").write_text(str(code))
    if count:
        saved(where.folder / "rows.json", row("a"), machine={})
    assert sides.measured(where, [], where.folder / "x", title="base").code == code
    assert re.search(rf"base: {count} cases? in ", capsys.readouterr().err)


@pytest.mark.parametrize(("code", "sentence"), [(0, "measured nothing"), (3, "exited with code 3")])
def test_what_did_not_measure_is_an_error_with_the_end_of_its_log(where, code, sentence):
    (where.folder / "code").write_text(str(code))
    if code:
        saved(where.folder / "rows.json", row("a"), machine={})
    with pytest.raises(RunError, match=rf"{sentence}, full log: .*x\.log\n(.*\n)*last"):
        sides.measured(where, [], where.folder / "x")


def test_an_environment_is_a_folder_a_python_or_a_command(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch(mode=0o755)
    module = ("-m", "pytest")
    assert sides.environment("base", str(tmp_path)).command == (str(python), *module)
    assert sides.environment("base", str(python)).command == (str(python), *module)
    assert sides.environment("base", "env A=1 python3").command == ("env", "A=1", "python3", *module)
    assert sides.environment("base", "sh -c x").command == ("sh", "-c", "x")
    for wrong in ("", "nothing-like-this --x", "sh '", str(tmp_path / "bin")):
        with pytest.raises(RunError, match=f"--base={wrong}: is not a virtual environment, a Python or a command"):
            sides.environment("base", wrong)


def test_a_program_is_asked_where_a_python_is_named():
    here = Environment("here", (sys.executable, *processes.MODULE))
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    assert sides.answer_of(here, program, "a", "b") == ["a", "b"]
    assert sides.answer_of(Environment("here", ("sh", "-c", "x")), program) is None
    with pytest.raises(RunError, match="here: its Python does not answer: ZeroDivisionError"):
        sides.answer_of(here, "1 / 0")
    with pytest.raises(RunError, match="here: its Python does not answer: it prints 'x"):
        sides.answer_of(here, "print('x')")


def test_words_are_logged_and_say_the_device(tmp_path):
    assert sides.gpu(["--perf-device=cpu", "x.py"]) is None
    with pytest.raises(RunError, match=r"no device to measure on: .*there is no device cuda:99"):
        sides.gpu(["-k", "x", "--perf-device=cuda:99"])
    sides.logged(["sh", "-c", "echo well"], tmp_path / "logs" / "a.log")
    with pytest.raises(RunError, match=r"ended with code 3, all of it in .*b\.log:\nbadly"):
        sides.logged(["sh", "-c", "echo badly; exit 3"], tmp_path / "logs" / "b.log")


def test_a_folder_for_results_is_new_or_empty(tmp_path):
    made = sides.folder(tmp_path / "new", "ab")
    assert sides.folder(made, "ab") == made
    (made / "x").touch()
    with pytest.raises(RunError, match="the folder is not empty, name a new one"):
        sides.folder(made, "ab")


def test_a_run_of_another_gpu_than_the_locked_one_is_refused(tmp_path):
    saved(tmp_path / "x.json", row("a"), machine={})
    run = run_file.parse(run_file.load(tmp_path / "x.json"), "x.json")
    sides.verify(run, "GPU-0")
    with pytest.raises(RunError, match=r"x\.json was measured on GPU-0, the CPU is locked: choose the GPU with CUDA_"):
        sides.verify(run, None)


def test_every_second_pair_begins_with_the_second_side():
    seen = []
    pairs = sides.Pairs(("base", "head"), lambda side, nth, cases: seen.append((side, nth, cases)) or side)
    assert [pairs(0), pairs(1, frozenset("a"))] == [("base", "head")] * 2
    assert seen == [("base", 0, None), ("head", 0, None), ("head", 1, {"a"}), ("base", 1, {"a"})]
    assert len(pairs.seconds) == 2


class Telling(io.StringIO):
    """A stream that does something once it is written to."""

    def __init__(self, then):
        super().__init__()
        self._then = then

    def write(self, text):
        self._then()
        return super().write(text)


@pytest.mark.parametrize(("gpu", "named"), [(None, "CPU"), ("GPU-0", "GPU")])
def test_who_waits_for_a_device_is_told_which(tmp_path, monkeypatch, gpu, named):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lock = tmp_path / f"flashinfer-perf-{gpu or 'cpu'}.lock"
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        monkeypatch.setattr(sys, "stderr", Telling(lambda: fcntl.flock(other, fcntl.LOCK_UN)))
        with sides.alone_on(gpu):
            assert sys.stderr.getvalue() == f"waiting for the {named}: another run holds {lock}\n"
