"""A routine is one new file and nothing else: it is dropped into the package's folder, and everything finds it."""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import support_matrix
from documents import DOCS, QUICK, ROOT, blocks, commands_of

from pytest_flashinfer_perf import cli, routines
from pytest_flashinfer_perf.routines import gemm

ADDED = "tinygemm_bf16"
TESTS = ROOT / "tests"


@pytest.fixture
def added(tmp_path):
    """Adds a file to a family's folder, which is the package's own and one of this test, until this fixture ends."""
    made = []

    def add(family, name, source):
        (tmp_path / f"{name}.py").write_text(source)
        patch.setattr(family, "__path__", [*family.__path__, str(tmp_path)])
        made.append((family, name))
        routines.all_routines.cache_clear()
        return routines.all_routines()[name]

    with pytest.MonkeyPatch.context() as patch:
        for module, file in [(name, getattr(one, "__file__", None)) for name, one in sys.modules.items()]:
            if file and Path(file).is_relative_to(TESTS) and not Path(file).is_relative_to(TESTS / "plugin"):
                patch.delitem(sys.modules, module)  # a suite's file has a test for each routine that was there
        yield add
    routines.all_routines.cache_clear()
    for family, name in made:
        sys.modules.pop(f"{family.__name__}.{name}")
        delattr(family, name)


@pytest.fixture
def documented(added):
    """The routine of the page that explains how to add one."""
    [source] = blocks(DOCS / "add-a-routine.md", "python")
    assert f"these {len(source.splitlines())} lines are all of it" in (DOCS / "add-a-routine.md").read_text()
    return added(gemm, ADDED, source)


@pytest.mark.usefixtures("documented")
def test_a_new_gemm_is_collected_measured_searched_and_listed(pytester, capsys):
    _, listed, measured, searched, repeated, _ = (words[1:] for words in commands_of(DOCS / "add-a-routine.md"))
    assert measured[0] == searched[0] == "tests/gemm"
    quick = [str(TESTS / "gemm"), "--import-mode=importlib", *QUICK]
    pytester.runpytest(*measured[1:], *quick, "--benchmark-json=run.json").assert_outcomes(passed=5, skipped=5)
    rows = json.loads((pytester.path / "run.json").read_text())["benchmarks"]
    assert {(row["extra_info"]["routine"], row["extra_info"]["refcheck"]) for row in rows} == {(ADDED, "passed")}
    assert all(row["stats"]["median"] > 0 for row in rows)
    collected = pytester.runpytest(*searched[1:], *quick, "--collect-only", "-q")
    collected.stdout.fnmatch_lines([f"*test_{ADDED}[[]fuzz-{backend}]" for backend in ("torch", "tinygemm")])
    pytester.runpytest(*repeated, "--import-mode=importlib", *QUICK).assert_outcomes(passed=1)
    capsys.readouterr()
    assert cli.main(listed) == 0
    assert f"{ADDED} (gemm)" in capsys.readouterr().out


def test_a_new_gemm_has_lines_in_testlists_and_in_the_support_matrix(pytester, documented):
    pytester.path.joinpath("lines.txt").write_text(f"--routine {ADDED} --m 4 --n 32 --k 64 --backends torch tinygemm\n")
    pytester.runpytest("lines.txt", *QUICK).assert_outcomes(passed=1, skipped=1)
    table = "\n".join(support_matrix.routine_lines(documented, Counter()))
    assert table == f"| `{ADDED}` | all but A100, L40S | tinygemm |"
