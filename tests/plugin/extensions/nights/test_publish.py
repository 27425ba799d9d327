"""Runs in a branch of a git remote: nothing is lost, repeated or rewritten, whoever else writes."""

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import document, row, saved

from pytest_flashinfer_perf import cli
from pytest_flashinfer_perf.cli.commands import main
from pytest_flashinfer_perf.extensions.nights.record import Records
from pytest_flashinfer_perf.rows.run_file import RunError

QUIET = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder, *words, **said):
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True, **said)
    return done.stdout


@pytest.fixture
def remote(tmp_path, monkeypatch):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    git(tmp_path, "init", "--bare", "-q", "there.git")
    git(tmp_path, "clone", "-q", "there.git", "here")
    monkeypatch.chdir(tmp_path / "here")
    git(".", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x")
    return tmp_path / "there.git"


def night(path, day, *rows, **said):
    return saved(path, *(rows or [row()]), when=f"2026-{day}T03:00:00+00:00", commit="c" * 40, **said)


def lines(remote, name="2026-11.jsonl", branch="perf-data"):
    return [json.loads(line) for line in git(remote, "show", f"{branch}:{name}").splitlines()]


def kinds(remote, **said):
    return [line["kind"] for line in lines(remote, **said)]


def everything(folder):
    """All files of a checkout and of its git folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


REPRO = "pytest '--perf-case=--routine decode --backends fa3 --batch_size 16'"


def test_a_run_is_a_line_and_what_runs_share_is_said_once(remote, tmp_path, capsys):
    rows = [row(kernels=["k"]), row("decode/b32", us=21.25, kernels=["k"], repro=REPRO)]
    first, second = (night(tmp_path / f"{day}.json", day, *rows) for day in ("11-01", "11-02"))
    before = everything(tmp_path / "here")
    assert cli.main(["publish", str(first)]) == 0
    assert kinds(remote) == ["environment", "case", "case", "kernels", "run"]
    assert cli.main(["publish", str(second)]) == 0
    assert kinds(remote)[5:] == ["run"]
    *_, two, _, run, again = lines(remote)
    assert (run["us"], run["commit"]) == ([100.0, 21.25], "c" * 40)
    assert run["kernels"][0] == run["kernels"][1]
    assert two["repro"] == REPRO
    assert (run["case"], run["environment"]) == (again["case"], again["environment"])
    assert everything(tmp_path / "here") == before
    assert capsys.readouterr().out.count("1 run in branch perf-data of origin, in commit") == 2


def test_the_same_run_twice_adds_nothing_and_months_have_files_of_their_own(remote, tmp_path, capsys):
    one, other = night(tmp_path / "1.json", "11-30"), night(tmp_path / "2.json", "12-01", row(us=101.0))
    assert cli.main(["publish", str(one), str(other)]) == 0
    tip = git(remote, "rev-parse", "perf-data")
    assert cli.main(["publish", str(other)]) == 0
    assert "which had all of it: nothing was added" in capsys.readouterr().out
    assert git(remote, "rev-parse", "perf-data") == tip
    assert kinds(remote)[-1] == kinds(remote, name="2026-12.jsonl")[-1] == "run"


def test_a_card_has_a_run_of_its_own_and_what_failed_is_kept(remote, tmp_path):
    failed = {"case": "decode/b64", "outcome": "failed", "reason": "IndexError: out of range\nmore"}
    rows = [row("a"), row("b", gpu_uuid="GPU-1"), row("wrong", refcheck="wrong"), row("none", us=None)]
    assert cli.main(["publish", str(night(tmp_path / "1.json", "11-01", *rows, unmeasured=[failed]))]) == 0
    first, second = (line for line in lines(remote) if line["kind"] == "run")
    assert (len(first["case"]), len(second["case"]), second["failed"]) == (2, 1, first["failed"])
    assert set(first["failed"]) == {"decode/b64", "wrong"}
    assert first["failed"]["decode/b64"].endswith("IndexError: out of range")


WRITER = "import sys; from pytest_flashinfer_perf.cli.commands import main; sys.exit(main('publish', sys.argv[1:]))"


def writer(*words):
    return subprocess.Popen([sys.executable, "-c", WRITER, *map(str, words)], stderr=subprocess.PIPE, text=True)


@pytest.mark.more
def test_two_writers_lose_nothing(remote, tmp_path):
    """Each publishes to the same file at once, from processes of their own, and to a branch that is not there yet."""
    days = range(1, 7)
    files = [night(tmp_path / f"{day}.json", f"11-{day:02}", row(us=100.0 + day)) for day in days]
    for process in [writer(file) for file in files]:
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
    assert sorted(line["us"][0] for line in lines(remote) if line["kind"] == "run") == [100.0 + day for day in days]
    tips = git(remote, "rev-list", "--reverse", "perf-data").split()
    texts = [git(remote, "show", f"{tip}:2026-11.jsonl") for tip in tips]
    assert all(newer.startswith(older) for older, newer in pairwise(texts))


def test_a_writer_that_is_killed_before_its_push_leaves_nothing(remote, tmp_path, monkeypatch):
    """Its git hangs where it would push; another publishes meanwhile, and the first may be started again."""
    hanging = tmp_path / "bin" / "git"
    hanging.parent.mkdir()
    real = subprocess.run(["which", "git"], capture_output=True, text=True, check=True).stdout.strip()
    reached = tmp_path / "reached"
    hanging.write_text(
        f'#!/bin/sh\ncase " $* " in *" push "*) touch {reached}; exec sleep 60;; esac\nexec {real} "$@"\n'
    )
    hanging.chmod(0o755)
    one, other = night(tmp_path / "1.json", "11-01"), night(tmp_path / "2.json", "11-02", row(us=101.0))
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{hanging.parent}:{path}")
    killed = writer(one)
    while not reached.exists():
        assert killed.poll() is None
    killed.kill()
    killed.communicate()
    monkeypatch.setenv("PATH", path)
    assert git(remote, "for-each-ref") == ""
    for file in (other, one):
        assert main("publish", [str(file)]) == 0
    assert [line["us"] for line in lines(remote) if line["kind"] == "run"] == [[101.0], [100.0]]


CUT_OFF = '{"kind": "kernels", "id": "x", "names": []}'
DAMAGED = {
    "{": "2026-11.jsonl:2: no line of published runs",
    "[" * 100_000: "2026-11.jsonl:2: no line",
    "[]": "it is no object",
    '{"kind": "else", "id": "x"}': "known are environment, case, kernels, run",
    '{"kind": "case", "id": "x", "name": 5}': "name must be text",
    '{"kind": "run", "id": "x", "schema": 9}': "its schema is 9, this version reads 1",
    '{"kind": "run", "id": "x", "schema": 1.0}': "its schema is 1.0, this version reads 1",
    '{"kind": "run", "id": "x", "schema": true}': "its schema is True, this version reads 1",
    '{"kind": "run", "id": "x", "schema": 1, "when": "x", "environment": "e", "case": ["c"]}': "'c' has no line before",
    '{"kind": "kernels", "id": "x", "names": NaN}': "NaN is no number",
    CUT_OFF: "2026-11.jsonl:2: the line is cut off",
}


@pytest.mark.parametrize("line", DAMAGED)
def test_what_is_damaged_is_refused_with_file_and_line(line, remote, tmp_path, capsys):
    kept = '{"kind": "kernels", "id": "k", "names": ["k"]}'
    damaged(remote, f"{kept}\n{line}" + "\n" * (line is not CUT_OFF))
    tip = git(remote, "rev-parse", "perf-data")
    assert main("publish", [str(night(tmp_path / "1.json", "11-01"))]) == 2
    told = capsys.readouterr().err
    assert "perf-data:2026-11.jsonl:2: " in told
    assert DAMAGED[line] in told
    assert git(remote, "rev-parse", "perf-data") == tip


def damaged(remote, text):
    """The branch with one file of this text."""
    blob = git(remote, "hash-object", "-w", "--stdin", input=text).strip()
    tree = git(remote, "mktree", input=f"100644 blob {blob}\t2026-11.jsonl\n").strip()
    who = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    commit = git(remote, "commit-tree", tree, "-m", "x", env={**os.environ, **who}).strip()
    git(remote, "update-ref", "refs/heads/perf-data", commit)


NIGHT = {"us": [1.0], "busy_us": [None], "cycles": [None], "ghz": [1.9], "kernels": [None]}


@pytest.mark.parametrize(
    ("column", "told"),
    [
        ({"us": ["1"]}, "us must be a list of as many numbers"),
        ({"us": [True]}, "us must be a list of as many numbers"),
        ({"us": [1.0, 2.0]}, "us must be a list of as many numbers"),
        ({"us": [None]}, "us must be a number for each case"),
        ({"us": [0]}, "us must be numbers from 1e-06"),
        ({"ghz": [-1]}, "ghz must be numbers from 0"),
        ({"cycles": [10**400]}, "int too large"),
        ({"cycles": [1e18]}, "cycles must be numbers from 0"),
        ({"case": [None]}, "each case must be there once"),
        ({"case": ["c", "c"], "us": [1, 2]}, "each case must be there once"),
        ({"case": [["c"]]}, "case must be a list of ids"),
        ({"kernels": ["k"]}, "kernels 'k' has no line before it"),
        ({"environment": "x"}, "environment 'x' has no line before it"),
        ({"when": "yesterday"}, "Invalid isoformat string"),
        ({"failed": []}, "failed must be an object"),
    ],
)
def test_a_run_whose_columns_do_not_fit_is_refused(column, told, remote, tmp_path, capsys):
    case = {"kind": "case", "id": "c", "name": "n", "test": "t"}
    run = {"kind": "run", "id": "r", "schema": 1, "when": "2026-11-01", "environment": "e", "case": ["c"], **NIGHT}
    said = [{"kind": "environment", "id": "e", "gpu": "g"}, case, {**run, **column}]
    damaged(remote, "".join(json.dumps(one) + "\n" for one in said))
    assert main("publish", [str(night(tmp_path / "1.json", "11-01"))]) == 2
    assert f"perf-data:2026-11.jsonl:3: no line of published runs: {told}" in capsys.readouterr().err.replace(
        "it: ", ""
    )


STRANGE = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4), st.lists)
KINDS = st.sampled_from(["run", "case", "environment", "kernels"])
FIELDS = ["schema", "when", "environment", "case", "kernels", "failed", "names", "name", "gpu", "test", *NIGHT]


@given(KINDS, st.dictionaries(st.sampled_from(FIELDS), STRANGE | st.just("2026-11-01"), min_size=1))
def test_no_line_is_read_or_refused_otherwise(kind, said):
    text = json.dumps({"kind": kind, "id": "x", "schema": 1, **said}) + "\n"
    try:
        assert not Records().read(text, "file").nights or said["us"] == []
    except RunError as error:
        assert str(error).startswith("file:1: ")  # noqa: PT017 - both may be


def test_what_was_published_can_be_watched(remote, tmp_path, monkeypatch, capsys):
    files = [night(tmp_path / f"{day}.json", f"11-{day:02}", row(us=100.0 + day % 3)) for day in range(1, 9)]
    assert main("publish", list(map(str, files))) == 0
    assert main("watch", ["perf-data", "-o", "site"]) == 0
    assert "NVIDIA H200: 8 runs, 1 case, 0 changed" in capsys.readouterr().out
    failed = {"case": "decode/b16-fa3", "outcome": "failed", "reason": "IndexError: out of range"}
    machine = {"gpu": "NVIDIA H200", "driver": "580", "flashinfer": "0.7.2", "torch": "2.11"}
    path = tmp_path / "9.json"
    path.write_text(json.dumps(document(when="2026-11-09T03:00:00+00:00", unmeasured=[failed], machine=machine)))
    monkeypatch.chdir(tmp_path)
    assert main("publish", [str(path), "--remote", str(remote)]) == 0
    assert main("watch", ["perf-data", "-o", "site", "--remote", str(remote)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "NVIDIA H200: 9 runs, 1 case, 0 changed decode/b16-fa3, failed: IndexError: out of range" in told


def test_the_branch_is_no_other_ref_that_ends_in_its_name(remote, tmp_path, capsys):
    """As a mirror may keep one, which is listed first."""
    files = [night(tmp_path / f"{day}.json", f"11-0{day}", row(us=100.0 + day)) for day in (1, 2, 3)]
    assert main("publish", [str(files[0])]) == 0
    git(remote, "update-ref", "refs/backup/refs/heads/perf-data", "perf-data")
    for file in files[1:]:
        assert main("publish", [str(file)]) == 0
    assert [line["us"] for line in lines(remote) if line["kind"] == "run"] == [[101.0], [102.0], [103.0]]
    main("watch", ["perf-data", "-o", "site"])
    assert "NVIDIA H200: 3 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--remote", "nowhere"], "git ls-remote, of nowhere"),
        *((["--branch", name], f"{name!r} is no name of a branch") for name in ("a..b", "HEAD")),
        (["--remote=--upload-pack=touch x"], "git ls-remote"),
    ],
)
@pytest.mark.usefixtures("remote")
def test_what_cannot_be_reached_is_one_sentence(words, told, tmp_path, capsys):
    assert main("publish", [str(night(tmp_path / "1.json", "11-01")), *words]) == 2
    assert told in capsys.readouterr().err


def test_impossible_and_wrong_times_are_no_history(remote, tmp_path):
    rows = [row(), row("decode/b32", status="invalid"), row("decode/b64", status="wrong")]
    assert main("publish", [str(night(tmp_path / "1.json", "11-01", *rows))]) == 0
    *_, run = lines(remote)
    wrong = "wrong-answer: its answer is wrong in this run"
    said = {"decode/b32": "INVALID: faster than its device can be", "decode/b64": wrong}
    assert (run["us"], run["failed"]) == ([100.0], said)


BUSY = {"seconds": 1.0, "cores": 2, "waited": 0.9, "taken": 0.9, "stolen": 0.0}


@pytest.mark.usefixtures("remote")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"us": None}, ""),
        ({"instrument": "wall", "contention": BUSY}, "its 1 row is of a machine that others used and "),
    ],
)
def test_a_run_that_says_nothing_is_not_published(said, told, tmp_path, capsys):
    assert main("publish", [str(night(tmp_path / "1.json", "11-01", row(**said)))]) == 2
    assert re.search(f"{told}.*: there is nothing to publish", capsys.readouterr().err)


def test_a_night_in_which_all_failed_is_of_the_device_that_it_was_meant_for(remote, tmp_path):
    failed = {"case": "a", "outcome": "failed", "reason": "it crashed", "device_name": "AMD EPYC"}
    path = tmp_path / "1.json"
    path.write_text(json.dumps(document(unmeasured=[failed], when="2026-11-01T03:00:00+00:00")))
    assert main("publish", [str(path)]) == 0
    assert [said["gpu"] for said in lines(remote) if said["kind"] == "environment"] == ["AMD EPYC"]


def test_outside_of_a_repository_an_address_is_enough(remote, tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.mkdir()
    monkeypatch.chdir(outside)
    file = night(tmp_path / "1.json", "11-01")
    assert main("publish", [str(file), "--remote", str(remote)]) == 0
    assert kinds(remote)[-1] == "run"
    assert list(outside.iterdir()) == []


@pytest.mark.usefixtures("remote")
def test_a_git_that_dies_without_a_word_is_an_error_with_its_code(tmp_path, monkeypatch, capsys):
    dying = tmp_path / "bin" / "git"
    dying.parent.mkdir()
    dying.write_text(f'#!/bin/sh\ncase "$*" in *hash-object*) kill -9 $$;; esac\nexec {shutil.which("git")} "$@"\n')
    dying.chmod(0o755)
    monkeypatch.setenv("PATH", str(dying.parent), prepend=os.pathsep)
    assert main("publish", [str(night(tmp_path / "1.json", "11-01"))]) == 2
    assert "git hash-object, of origin: it ended with code -9, without a word\n" in capsys.readouterr().err
