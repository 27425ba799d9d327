"""`flashinfer-perf bisect` on commits of a repository, by replayed instruments and by a real clock."""

import json
import re
import shlex
import sys
from pathlib import Path

import commits
import pytest
import stand_in_pytest

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.extensions.bisect.histories import git


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """Makes a repository of commits with these levels, and goes there; the ids of its commits."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "fake.py").write_text(stand_in_pytest.REPORTS)

    def repo(*of_commits):
        ids = commits.repository(tmp_path / "repo", [{"level": json.dumps(level)} for level in of_commits])
        monkeypatch.chdir(tmp_path / "repo")
        return ids

    return repo


@pytest.fixture
def bisect(tmp_path, capsys):
    """Exit code, standard output in one line, and standard error of the command in a repository."""
    python = f"--python={shlex.quote(sys.executable)} -S {tmp_path / 'fake.py'}"

    def bisect(*own, pytests=("--perf-device=cpu",)):
        code = cli.main(["bisect", python, f"--output={tmp_path / 'out'}", *own, "--", *pytests])
        shown = capsys.readouterr()
        return code, " ".join(shown.out.split()), shown.err

    return bisect


@pytest.mark.more
@pytest.mark.parametrize("place", [11, 50])
def test_a_slow_down_is_found_by_a_real_clock(repo, bisect, place):
    slower = [{"clock": 10_000 if number < place else 12_000} for number in range(64)]
    ids = repo(*slower[: place - 1], {"broken": 0} if place == 50 else slower[place - 1], *slower[place:])
    code, shown, _ = bisect("--repo=.", f"--good={ids[0]}", "--bad=main", "--pairs=3", "--most-pairs=6")
    named = [f"{git(Path(), 'log', '-1', '--format=%h', ids[at])} Commit {at}" for at in (place - 1, place)]
    assert named[1] in shown
    assert code == (1 if place == 50 else 0)
    assert (named[0] in shown) == (place == 50)
    assert shown.startswith(f"own/clock first slower in {'one of these 2' if place == 50 else named[1]}")


def test_cases_share_steps_and_the_checkout_stays_as_it_was(repo, bisect, tmp_path):
    levels = [{"a": 100, "b": 50, "c": 70} for _ in range(16)]
    for level in levels[9:]:
        level["a"] = 120
    for level in levels[10:]:
        level["b"] = 60
    ids = repo(*levels)
    (tmp_path / "repo" / "level").write_text("changed by hand")
    code, shown, told = bisect("--repo=.", f"--good={ids[0]}", "--bad=main")
    assert code == 0
    for case, at in (("a", 9), ("b", 10)):
        assert f"own/{case} first slower in {ids[at][:7]} Commit {at} (A, 2023-11-14)" in shown
    assert "own/c first" not in shown
    assert "time +20.0" in shown
    assert "now runs another kernel: kernel_100 -> kernel_120" in shown
    assert len(re.findall(r"^ ?\d+ (?:ends|step|verify)", told, re.MULTILINE)) <= 1 + 5 + 2
    assert "own/c" not in told.partition("2 step")[2]
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [case["suspects"] for case in result] == [[ids[9]], [ids[10]]]
    verdicts = json.loads((tmp_path / "out" / "02-search" / "verdicts.json").read_text())
    assert {case["case"] for case in verdicts["cases"]} == {"own/a", "own/b"}
    assert git(Path(), "status", "--short") == "M level"
    assert git(Path(), "worktree", "list").count("\n") == 0
    assert git(Path(), "for-each-ref", "refs/bisect") == ""


SLOWER, ENQUEUED = [100] * 3 + [130] * 3, [30] * 3 + [90] * 3
FOUND = [  # what is searched for, levels of a case, where the change is, what is said
    ("faster", ("a", [*SLOWER, 80]), 6, "first faster in {} Commit 6", "time -38.4"),
    ("host", ("enqueued", ENQUEUED), 3, "first slower to enqueue in {}", "30.00 us -> 90.00 us: host +200.00 %"),
]


@pytest.mark.parametrize(("find", "levels", "at", "first", "size"), FOUND)
def test_what_is_searched_for_is_found(repo, bisect, find, levels, at, first, size):  # noqa: PLR0917
    case, of_commits = levels
    ids = repo(*({case: level} for level in of_commits))
    code, shown, _ = bisect("--repo=.", f"--good={ids[0]}", "--bad=main", f"--find={find}")
    assert code == 0
    assert f"own/{case} {first.format(ids[at][:7])}" in shown
    assert size in shown


def test_what_fuzzing_found_is_searched_for_as_its_case(repo, bisect, tmp_path):
    line = ["--routine", "mm_bf16", "--m", "45"]
    ids = repo(*({"a": 80 if number < 3 else 120} for number in range(6)))
    (tmp_path / "found.json").write_text(json.dumps({"flashinfer_perf_finding": 1, "line": line}))
    ends = ("--repo=.", f"--good={ids[0]}", "--bad=main")
    code, shown, _ = bisect(*ends, "--find=wrong", pytests=[str(tmp_path / "found.json"), "--perf-device=cpu"])
    assert code == 0
    assert f"own/a first wrong in {ids[3][:7]} Commit 3" in shown


SAME_ENDS = "the ends do not differ in what is searched for:\n  own/"


@pytest.mark.parametrize(
    ("levels", "sentence"),
    [
        ([{"a": 100}, {"a": 120}, {"a": 100}], f"{SAME_ENDS}a: "),
        ([{"enqueued": 30}, {"enqueued": 90}], f"{SAME_ENDS}enqueued: "),  # which takes the host longer alone
        ([{"broken": 1}, {"a": 100}, {"a": 120}], "level.c:1: error: it does not compile"),
    ],
)
def test_ends_between_which_nothing_can_be_searched_are_refused(repo, bisect, tmp_path, levels, sentence):
    ids = repo(*levels)
    code, shown, told = bisect("--repo=.", f"--good={ids[0]}", "--bad=main")
    assert (code, shown) == (2, "")
    assert sentence in told
    assert not (tmp_path / "out" / "trees" / "base").exists()


def test_ends_of_which_one_has_no_such_case_are_unclear_and_that_is_said(repo, bisect):
    ids = repo({"a": 100, "b": 50}, {"a": 100, "b": 50}, {"a": 120})
    code, shown, _ = bisect("--repo=.", f"--good={ids[0]}", "--bad=main")
    assert code == 1
    assert "own/a first slower in" in shown
    assert "own/b not searched, it is unclear whether the ends differ: MISSING: vanished: in the baseline, not" in shown


def test_a_commit_that_does_not_build_is_skipped_and_its_log_is_kept(repo, bisect, tmp_path):
    levels = [{"a": 100 if number < 6 else 120} for number in range(9)]
    levels[4]["b"] = 1
    ids = repo(*levels)
    code, shown, told = bisect("--repo=.", f"--good={ids[0]}", "--bad=main", "--build=! grep b level")
    assert code == 0
    assert f"first slower in {ids[6][:7]} Commit 6" in shown
    assert "unclear: sh -c '! grep b level' ended with code 1, all of it in " in " ".join(told.split())
    assert (tmp_path / "out" / "builds" / f"head-{ids[4]}.log").read_text() == '{"a": 100, "b": 1}\n'


@pytest.mark.parametrize(
    ("own", "pytests", "sentence"),
    [
        (["--repo=.", "--good=main"], [], "--repo needs both --good=REV and --bad=REV"),
        (["--repo=.", "--good=main", "--bad=main"], [], "--good=main and --bad=main are one commit"),
        (["--repo=.", "--good=main", "--bad=main~1"], [], "--good=main is no ancestor of --bad=main~1"),
        (["--repo=.", "--good=maim", "--bad=main"], [], "--good=maim: "),
        (["--repo=.", "--good=main~1", "--bad=main"], ["{cwd}/level"], "is in the checkout itself: start this in"),
        (["--releases", "1.0", "2.0"], [], "with --releases it must be a virtual environment or a Python"),
    ],
)
def test_what_cannot_be_searched_is_said(repo, bisect, own, pytests, sentence):
    repo({"a": 1}, {"a": 2})
    words = [word.format(cwd=Path.cwd()) for word in pytests]
    code, shown, told = bisect(*own, pytests=words)
    assert (code, shown) == (2, "")
    assert sentence in told
