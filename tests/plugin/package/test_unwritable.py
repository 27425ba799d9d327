"""Files that cannot be written: refused before anything is measured, and when it is known later, the table is there."""

import os
import re
from contextlib import contextmanager

import pytest
import vl_convert

from pytest_flashinfer_perf.engine import peaks

assert vl_convert, "imported before pytester runs anything: it can be imported only once"

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
    *("--perf-html=file/r.html", "--perf-html=folder", "--perf-csv=file/r.csv", "--perf-vllm-csv=/proc"),
    *("--benchmark-json=file/run.json", "--benchmark-json=folder", "--perf-findings=file/found --perf-fuzz"),
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
    assert not list(own.path.rglob("*.journal"))


@pytest.mark.parametrize("option", ["--perf-html=out/report", "--perf-csv=out/report"])
def test_what_cannot_be_written_in_the_end_is_said_under_the_table(own, option):
    own.makepyfile(
        test_own=OWN + "    import shutil; shutil.rmtree('out', ignore_errors=True); Path('out').write_text('')\n"
    )
    done = own.runpytest(*QUICK, option, *SHOWN)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    name = option.partition("=")[0]
    done.stdout.fnmatch_lines_random(["*test_own.py::test_own *", f"{name}: not written: *out*", "*1 passed*"])


FULL = """
import resource
from pathlib import Path

def pytest_runtest_setup():
    most = Path("rows.csv").stat().st_size + 100
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
"""


def test_a_disk_that_is_full_costs_files_and_not_the_run(own):
    """Each of them is longer than the disk has room for: what is left is whole, or the older one."""
    own.makeconftest(FULL)
    (own.path / "page.html").write_text("older")
    outputs = ("--perf-csv=rows.csv", "--perf-html=page.html", "--benchmark-json=run.json", "--perf-save-baseline=main")
    done = own.runpytest_subprocess("-q", "--benchmark-quiet", *QUICK, *outputs, "-p", "no:cacheprovider")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    names = ["csv", "html", "benchmark-json", "benchmark-storage"]
    done.stdout.fnmatch_lines_random(
        ["*test_own.py::test_own *", "*1 passed*", "--perf-resume could not go on*.journal'"]
    )
    done.stdout.re_match_lines_random([f"--.*{name}: not written: .*too large: '/.*" for name in names])
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    left = {path.name: path for path in own.path.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    made = {"rows.csv", "page.html", "run.json.journal", "measured"}
    assert left.keys() - {"stdout", "stderr"} == made | {"test_own.py", "conftest.py", "file"}
    assert left["page.html"].read_text() == "older"
    assert left["rows.csv"].read_text().count("\n") == 1


def test_a_csv_of_earlier_rows_is_left_alone_where_nothing_runs(own):
    (own.path / "run.csv").write_text("rows\n")
    assert own.runpytest("--perf-csv=run.csv", "--perf-vllm-csv=.", "--collect-only").ret == pytest.ExitCode.OK
    assert (own.path / "run.csv").read_text() == "rows\n"


NAMES = "html csv vllm-csv findings only config model strict-skips trace-set shard-by"


@pytest.mark.parametrize("option", NAMES.split())
def test_an_empty_name_is_not_taken_for_none(own, option):
    done = own.runpytest(*QUICK, f"--perf-{option}=")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: --perf-{option}: empty name: is a shell variable unset?"])
    assert not (own.path / "measured").exists()


def test_without_a_cache_to_write_to_it_is_measured_all_the_same(own):
    (own.path / ".pytest_cache").touch()
    said = f"*--perf-resume could not go on with this run: {own.path / '.pytest_cache'} cannot be written.*"
    done = own.runpytest(*QUICK, *SHOWN)
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines_random(["*test_own.py::test_own *", said])
    resumed = own.runpytest(*QUICK, *SHOWN, "--perf-resume")
    resumed.assert_outcomes(passed=1)
    resumed.stdout.fnmatch_lines(["--perf-resume: no journal at pytest's cache, which is off or cannot be written, *"])
    own.runpytest(*QUICK, "-W", "error", "-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_an_old_journal_of_somebody_else_is_no_reason_not_to_measure(own):
    (own.path / ".pytest_cache" / "d" / "flashinfer-perf" / "run.journal").mkdir(parents=True)
    done = own.runpytest(*QUICK, *SHOWN, "-n1")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*--perf-resume could not go on with this run: *.pytest_cache cannot be written.*"])


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
