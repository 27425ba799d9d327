"""The comment on a pull request: a program that believes neither the folder that it reads nor the server."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made import row, run
from workflows import ROOT, Api

from pytest_flashinfer_perf.extensions.compare import document
from pytest_flashinfer_perf.extensions.nights import pull_request
from pytest_flashinfer_perf.files import write_json
from pytest_flashinfer_perf.gate.judge import judge
from pytest_flashinfer_perf.gate.verdict import Rules

REPOSITORY = "kernels/own"
MARKER = "<!-- flashinfer-perf: flashinfer-perf -->"
SHA = "0123456789abcdef0123"
OF_A_PULL_REQUEST = {"pull_request": {"number": 7, "head": {"sha": SHA}}}
OF_A_RUN = {
    "workflow_run": {
        "id": 99,
        "event": "pull_request",
        "head_sha": SHA,
        "head_branch": "a&b=main",
        "head_repository": {"owner": {"login": "someone"}},
        "pull_requests": [],
    }
}


@pytest.fixture
def api():
    api = Api(REPOSITORY)
    yield api
    api.close()


@pytest.fixture
def comment(api, tmp_path, monkeypatch, capsys):
    """Exit code and output of the program for an event."""
    folder = tmp_path / "ab"
    folder.mkdir()
    judgement = judge([run(row("decode/a-fa3"))], [run(row("decode/a-fa3", us=200.0))], Rules(paired=True))
    (folder / "verdicts.json").write_text(document.text(judgement))
    said = {"GITHUB_API_URL": api.url, "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_RUN_ID": "5"}
    said |= {"GITHUB_TOKEN": "write-1", "GITHUB_EVENT_PATH": str(tmp_path / "event.json")}
    for name, text in said.items():
        monkeypatch.setenv(name, text)

    def comment(event=OF_A_PULL_REQUEST, *words):
        (tmp_path / "event.json").write_text(json.dumps(event))
        code = pull_request.main([str(folder), *words])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    comment.folder = folder
    return comment


def written(api):
    return [request for request in api.requests if request[0] != "GET"]


def test_there_is_one_comment_which_is_updated_wherever_it_stands(api, comment):
    for number in range(250):
        api.comment(f"{number}: {MARKER} is not where it begins")
    api.comment(f"{MARKER}\nof a person, who may edit it", kind="User")
    assert comment() == (0, "commented on pull request 7\n")
    [made] = [
        one for one in api.comments.values() if one["body"].startswith(f"{MARKER}\n### flashinfer-perf: 1 SLOWER")
    ]
    assert made["id"] == 252
    assert "\nCommit 0123456789, [log and files](https://github.com/kernels/own/actions/runs/5)." in made["body"]
    (comment.folder / "verdicts.json").unlink()
    assert comment() == (0, "updated the comment on pull request 7\n")
    assert "### flashinfer-perf: no verdicts" in made["body"]
    assert "SLOWER" not in made["body"]
    assert comment(OF_A_PULL_REQUEST, "--name=on a B200")[0] == 0
    assert len(api.comments) == 253
    assert [request[0] for request in written(api)] == ["POST", "PATCH", "POST"]


def test_a_run_of_another_workflow_comments_on_the_pull_request_that_has_its_commit(api, comment):
    """Which the server says, and neither the artifact nor a list in the event, that is empty for forks."""
    (comment.folder / "number").write_text("1")
    pull = {"number": 7, "head": {"sha": SHA}, "of": "someone:a&b=main"}
    older, others = {**pull, "head": {"sha": "f" * 20}}, {**pull, "number": 8, "of": "else:a&b=main"}
    for pulls, nothing in (([older, others], 0), ([pull, {**pull, "number": 9}], 2)):
        api.pulls = pulls
        code, shown = comment(OF_A_RUN)
        assert code == 0
        assert f"::notice title=no comment on the pull request::{nothing} open pull requests have 0123456789" in shown
    api.pulls = [older, pull, others]
    assert comment(OF_A_RUN) == (0, "commented on pull request 7\n")
    [made] = api.comments.values()
    assert made["number"] == 7
    assert "actions/runs/99). The figures are what the pull request's own code has measured" in made["body"]
    for run_of in ({"event": "push"}, {"head_repository": None}):
        assert comment({"workflow_run": {**OF_A_RUN["workflow_run"], **run_of}})[0] == 0
    assert comment({"ref": "refs/heads/main"})[0] == 0
    assert len(written(api)) == 1


@pytest.mark.parametrize(
    ("variables", "faults", "sentence"),
    [
        ({"GITHUB_TOKEN": "read-1"}, [], "403 Resource not accessible by integration: it needs `permissions: pull"),
        ({"GITHUB_TOKEN": "closed"}, [], "401 Bad credentials: the token is not valid, or no longer"),
        ({"GITHUB_TOKEN": ""}, [], "GITHUB_TOKEN is not set: this runs in a workflow"),
        ({"GITHUB_TOKEN": "secret\nHost%3A x"}, [], "GITHUB_TOKEN is no token"),
        ({}, [302], "302 a fault"),
        ({}, [422], "422 a fault"),
        ({}, [503], "503 a fault"),
        ({}, [None], "no answer: "),
        ({"GITHUB_API_URL": "http://127.0.0.1:9"}, [], "no answer: "),
        ({"GITHUB_EVENT_PATH": "nowhere.json"}, [], "nowhere.json does not exist"),
    ],
)
def test_what_prevents_it_is_one_sentence_without_the_token(api, comment, monkeypatch, *, variables, faults, sentence):
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    api.faults += faults
    code, shown = comment()
    [line] = shown.splitlines()
    assert line.startswith("::warning title=no comment on the pull request::")
    assert sentence in line
    assert code == 2
    assert not api.comments
    assert not any(word in shown for word in ("secret", "read-1", "write-1"))
    assert ("GET", "/elsewhere") not in api.requests


HOSTILE = (
    "a|b\n\n# @someone fixes #1 and GH-2\r\n<img src=https://evil.example/x> [x](https://evil.example) www.evil.example"
    " <!-- flashinfer-perf: flashinfer-perf --> ```\x1b[31m\u202e `x` a@evil.example $$x$$"
)


def hostile(comment, **members):
    """A file of verdicts whose every text is a stranger's."""
    values = json.loads((comment.folder / "verdicts.json").read_text())
    values |= {"headline": HOSTILE, "against": HOSTILE, "refusals": [HOSTILE], "notes": [HOSTILE]}
    said = dict.fromkeys(("model", "line", "subject", "sentence"), HOSTILE)
    values["steps"] = [{**said, "is_traffic": False, "worse": [HOSTILE], "unknown": []}]
    texts = dict.fromkeys(("case", "time", "change", "detects", "sentence"), HOSTILE)
    values["cases"] = [{**values["cases"][0], **texts, "judged_in": None, "remarks": [HOSTILE], "broken": [HOSTILE]}]
    return {**values, **members}


def test_what_a_stranger_has_written_is_text_and_stays_in_its_place(api, comment):
    write_json(comment.folder / "verdicts.json", hostile(comment))
    assert comment()[0] == 0
    [made] = api.comments.values()
    lines = made["body"].splitlines()
    body = "\n".join(lines)
    assert body.count(MARKER) == 1
    assert [line[:4] for line in lines if line.startswith("#")] == ["### "]
    assert [line.count("|") - line.count(r"\|") for line in lines if line.startswith("|")] == [7, 7, 7]
    assert not any(active in body for active in ("@someone", "a@evil", "#1", "GH-2", "://evil", "www.", "<img", "\x1b"))
    assert len(re.findall(r"(?<!\\)\]\(", body)) == 1
    assert "\u202e" not in body
    assert "<span>$</span><span>$</span>x<span>" in body
    assert body.count("$") == body.count("<span>$</span>")


@pytest.mark.parametrize(
    "wrong",
    [
        {"cases": [{"verdict": "FINE"}]},
        {"cases": {}},
        {"headline": 1},
        {"headline": "x", "cases": None},
        {"refusals": [["a"]]},
        {"cases": HOSTILE},
    ],
)
def test_a_file_that_is_none_of_verdicts_is_said_to_be_unreadable(api, comment, wrong):
    if wrong == {"cases": HOSTILE}:  # a reason is a code, which is not escaped
        wrong = {"cases": [{**hostile(comment)["cases"][0], "reason": HOSTILE}]}
    write_json(comment.folder / "verdicts.json", hostile(comment, **wrong))
    assert comment()[0] == 0
    [made] = api.comments.values()
    assert "The file of the verdicts cannot be read." in made["body"]
    assert HOSTILE[:3] not in made["body"]


def test_files_are_read_within_bounds(api, comment, monkeypatch, tmp_path):
    path = comment.folder / "verdicts.json"
    long = hostile(comment, notes=["x" * 500_000, *["y" * 1_000] * 200])
    write_json(path, long)
    assert comment()[0] == 0
    [made] = api.comments.values()
    assert 60_000 < len(made["body"]) < 65_536
    body, _, end = made["body"].partition("\nThe rest is in the files.\n")
    assert body.count("<details>") == body.count("</details>")
    assert "log and files" in end
    for text in ("[" * 200_000, "\x00", '{"headline": ' + "9" * 9_000 + "}", ""):
        path.write_text(text)
        assert comment()[0] == 0
        assert "cannot be read" in made["body"]
    write_json(path, long)
    monkeypatch.setattr(pull_request, "LARGEST_FILE", 1_000)
    assert comment()[0] == 0
    assert "cannot be read" in made["body"]
    (tmp_path / "secret.json").write_text(json.dumps(long))
    path.unlink()
    path.symlink_to(tmp_path / "secret.json")
    assert comment()[0] == 0
    assert "### flashinfer-perf: no verdicts" in made["body"]


texts = st.text(max_size=40) | st.sampled_from(["@a", "#1", "://x", "www.a", "GH-1", "`", "|", "\\", "<b>", "[a](b)"])
values = st.recursive(texts | st.none() | st.integers() | st.floats(), lambda part: st.lists(part, max_size=3))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(texts, min_size=8, max_size=8), values)
def test_whatever_the_file_says_a_comment_is_made(comment, said, anything):
    write = dict(zip(("headline", "against", "time", "case"), said, strict=False))
    for values in (hostile(comment, **write), hostile(comment, notes=anything), {"cases": anything}, anything):
        path = comment.folder / "verdicts.json"
        kept = path.read_text()
        write_json(path, values)
        shown = pull_request.verdicts(Path(comment.folder))
        path.write_text(kept)
        assert shown.startswith("### flashinfer-perf: ")
        assert shown.count("\n#") == 0
        assert not any(active in shown for active in ("://", "@a", "www.a", "<b>", "[a]("))


def test_it_runs_where_nothing_is_installed():
    words = [sys.executable, "-S", "-m", "pytest_flashinfer_perf.extensions.nights.pull_request", "--help"]
    done = subprocess.run(words, cwd=ROOT, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "one comment of a pull request" in " ".join(done.stdout.split())
