"""Files that cannot be written: refused before anything is measured, and when it is known later, the table is there."""

import os
import re
from contextlib import contextmanager

import pytest
from declared import OPTIONS, here

from pytest_flashinfer_perf.engine import peaks

QUICK = ("--perf-device=cpu", "--perf-iters=3")
SHOWN = ("-W", "default::pytest.PytestWarning")
OWN = """
from pathlib import Path
import torch

def test_own(perf):
    x = torch.ones(8)
    Path("measured").touch()
    perf.time(torch.neg, x, reference=-x)
"""


@pytest.fixture
def own(pytester):
    pytester.makepyfile(test_own=OWN)
    (pytester.path / "file").touch()
    return pytester


@contextmanager
def another_user():
    """Root may write everywhere: as somebody else, what root has closed is closed."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


REFUSED = (
    *(f"{name}=file/written" for name, one in OPTIONS.items() if one.writes is not None),
    *("--benchmark-json=file/run.json", "--benchmark-json=folder"),
    *(f"--benchmark-storage=file/runs {what}" for what in ("--perf-save-baseline=main", "--benchmark-autosave")),
)


@pytest.mark.parametrize("option", REFUSED)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(own, option):
    (own.path / "folder").mkdir()
    done = own.runpytest(*QUICK, *option.split(), "-p", "no:cacheprovider", *SHOWN)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    name, path = re.match("(.*?)=/?(\\w+)", option).groups()
    done.stderr.re_match_lines([rf"ERROR: .*{name}: .*'.*{path}.*|.*: error: argument {name}: .*{path}"])
    assert "Traceback" not in done.stderr.str()
    assert not (own.path / "measured").exists()


def is_text(option):
    return not option.may_be_empty and not {"type", "choices"} & {*option.keywords} and option.default is not False


EMPTY = [*(f"{name}=" for name, one in OPTIONS.items() if is_text(one)), "--perf-backends=,"]


@pytest.mark.parametrize("given", [*EMPTY, *here(["--perf-testlist="])])
def test_an_empty_name_is_not_taken_for_none(own, given):
    option, done = given.partition("=")[0], own.runpytest(*QUICK, given)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {option}: empty name: is a shell variable unset?"])
    assert not (own.path / "measured").exists()


def test_a_home_of_somebody_else_keeps_nothing_and_stops_nothing(hopper, tmp_path, monkeypatch):
    roof = peaks.Peaks(4e12, {"bfloat16": 800e12}, "measured")
    monkeypatch.setattr(peaks, "_measure", lambda _: roof)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "closed" / "cache"))
    (tmp_path / "closed").mkdir(mode=0)
    peaks.measured.cache_clear()
    with another_user():
        assert peaks.cache_path(hopper) is None
        assert peaks.measured(hopper) == roof
    peaks.measured.cache_clear()
