"""`flashinfer-perf ab`: real processes in turns, under a lock, with real exit codes."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from commits import repository
from made import CLOCKED

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.bisect.histories import git

PROGRAM = f"""{CLOCKED}
SLOWER = float(os.environ.get("SLOWER", "0"))


@pytest.mark.parametrize("name", "abcde")
@pytest.mark.benchmark(timer=CLOCK)
def test_it(benchmark, name):
    CLOCK.step = 1e-4 * (1 + SLOWER * (name == "a")) * (1 + RNG.gauss(0, 1e-3))
    benchmark.pedantic(lambda: None, rounds=3)


def test_broken():
    assert "BROKEN" not in os.environ
"""


@pytest.fixture
def told(pytester, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pytester.makepyfile(test_told=PROGRAM)
    return pytester.path


# Without hypothesis, whose import takes longer than all else of such a process.
QUIET = ("--", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
# Nor with torch, whose import takes longer still, to look for a GPU to lock.
ON_THE_CPU = (*QUIET, "--perf-device=cpu")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--pairs=0", "--pairs: must be a whole number of at least 1, got '0'"),
        ("--budget=nan", "--budget: must be a finite number of seconds of at least 0, got 'nan'"),
    ],
)
def test_no_pair_is_no_comparison(option, sentence, capsys):
    with pytest.raises(SystemExit):
        cli.main(["ab", "--base", sys.executable, "--head", sys.executable, option, "--", "x"])
    assert sentence in capsys.readouterr().err


def test_two_environments_are_measured_in_turns_and_judged(told, capsys):
    head = f"env SLOWER=0.1 {shlex.quote(sys.executable)}"
    words = ["ab", "--base", sys.executable, "--head", head, "--pairs=2", "--most-pairs=2", "--output=out"]
    assert cli.main([*words, "--markdown=more.md", *QUIET]) == 1
    shown = capsys.readouterr()
    told_of = " ".join(shown.out.split())
    assert "SLOWER (1) test_told.py::test_it[a] " in told_of
    assert "slower: beyond the threshold in time; measured again: +" in told_of
    assert "1 SLOWER, 4 SAME: something got worse" in told_of
    assert re.findall(r"pair (\d), (base|head): (\d) cases?", shown.err) == [
        ("1", "base", "5"),
        ("1", "head", "5"),
        ("2", "head", "5"),
        ("2", "base", "5"),
        ("3", "base", "1"),
        ("3", "head", "1"),
        ("4", "head", "1"),
        ("4", "base", "1"),
    ]
    verdicts = json.loads((told / "out" / "verdicts.json").read_text())
    assert verdicts["exit_code"] == 1
    assert (told / "out" / "verdicts.md").read_text() == (told / "more.md").read_text()
    pairs = [[f"out/pair-{n:02}-{side}.json" for n in (1, 2)] for side in ("base", "head")]
    assert cli.main(["compare", "--paired", "--base", *pairs[0], "--head", *pairs[1]]) == 1


@pytest.mark.usefixtures("told")
def test_a_budget_ends_it_and_failed_tests_count(capsys):
    broken = f"env BROKEN=1 {shlex.quote(sys.executable)}"
    assert cli.main(["ab", "--base", broken, "--head", broken, "--budget=0.1", "--output=out", *ON_THE_CPU]) == 1
    shown = capsys.readouterr()
    assert "REFUSED: base: tests failed, see out/pair-01-base.log" in shown.out
    assert "REFUSED: head: tests failed, see out/pair-01-head.log" in shown.out
    assert "something got worse" in shown.out
    assert json.loads(Path("out/verdicts.json").read_text())["exit_code"] == 1
    assert "pairs: 1, in " in shown.err
    assert "one more would not fit into --budget=0.1" in shown.err
    assert cli.main(["ab", "--base", broken, "--head", broken, "--output=out", *ON_THE_CPU]) == 2
    assert "--output=out: the folder is not empty" in capsys.readouterr().err


OWN = f"""import kernel
{CLOCKED}
@pytest.mark.benchmark(timer=CLOCK)
def test_it(benchmark):
    CLOCK.step = 1e-4 * kernel.TIMES * (1 + RNG.gauss(0, 1e-3))
    benchmark.pedantic(lambda: None, rounds=5)
"""


@pytest.fixture
def own_kernel(tmp_path, monkeypatch):
    """A repository of two commits, in which tests and kernel stand side by side; the second takes twice as long."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    of_commits = ({"test_own.py": OWN, "kernel.py": f"TIMES = {times}\n"} for times in (1, 2))
    repository(tmp_path / "repo", of_commits)
    monkeypatch.chdir(tmp_path / "repo")
    return tmp_path


def test_commits_are_built_and_measured_each_by_its_own_code(own_kernel, capsys):
    """Whatever lies in the checkout, and above all not by the kernel that does."""
    Path("kernel.py").write_text("TIMES = 50\n")
    build = f"test -f kernel.py && pwd >> {own_kernel}/built"
    words = ["ab", "--repo=.", "--base=HEAD~1", f"--build={build}", "--pairs=1", "--most-pairs=1"]
    assert cli.main([*words, "--output=out", "--json=verdicts.json", *ON_THE_CPU, "test_own.py"]) == 1
    assert "1 SLOWER: something got worse" in capsys.readouterr().out
    [case] = json.loads(Path("verdicts.json").read_text())["cases"]
    ratios = [after / before for before, after in zip(case["before_s"], case["after_s"], strict=True)]
    assert ratios == pytest.approx([2] * 3, rel=0.05)
    trees = own_kernel / "repo" / "out" / "trees"
    assert (own_kernel / "built").read_text().split() == [f"{trees}/base", f"{trees}/head"]
    assert git(Path(), "worktree", "list").count("\n") == 0
    assert not list(trees.iterdir())


@pytest.mark.usefixtures("own_kernel")
def test_commits_that_cannot_be_compared_are_one_sentence(capsys):
    gone = "--base=no-such-commit"
    for words, sentence in (
        (["--repo=.", gone], f"flashinfer-perf ab: {gone}: {Path.cwd()} has no such commit: fetch it"),
        (["--repo=.", "--base="], "has no such commit"),
        (["--base=python3"], "without --repo it needs --head"),
        (["--repo=.", "--base=HEAD", "--build=exit 3"], "sh -c 'exit 3' ended with code 3"),
        (["--repo=.", "--base=HEAD"], "file or directory not found: test_new.py"),
    ):
        assert cli.main(["ab", *words, f"--output=out-{len(sentence)}", *ON_THE_CPU, "test_new.py"]) == 2
        assert sentence in capsys.readouterr().err
