"""Files that extensions write and in the end cannot: the table is there, and what is left is whole."""

import pytest
import vl_convert

assert vl_convert, "imported before pytester runs anything: it can be imported only once"

QUICK = ("--perf-device=cpu", "--perf-iters=3")
SHOWN = ("-W", "default::pytest.PytestWarning")
OWN = """
from pathlib import Path
import torch

def test_own(perf):
    perf.time(torch.neg, torch.ones(8))
"""


@pytest.fixture
def own(pytester):
    pytester.makepyfile(test_own=OWN)
    return pytester


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
    done.stdout.fnmatch_lines_random(["*test_own.py::test_own *", "*1 passed*"])
    done.stdout.re_match_lines_random([f"--.*{name}: not written: .*too large: '/.*" for name in names])
    assert "Traceback" not in done.stdout.str() + done.stderr.str()
    left = {path.name: path for path in own.path.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    made = {"rows.csv", "page.html"}
    assert left.keys() - {"stdout", "stderr"} == made | {"test_own.py", "conftest.py"}
    assert left["page.html"].read_text() == "older"
    assert left["rows.csv"].read_text().count("\n") == 1


def test_a_csv_of_earlier_rows_is_left_alone_where_nothing_runs(own):
    (own.path / "run.csv").write_text("rows\n")
    assert own.runpytest("--perf-csv=run.csv", "--perf-vllm-csv=.", "--collect-only").ret == pytest.ExitCode.OK
    assert (own.path / "run.csv").read_text() == "rows\n"
