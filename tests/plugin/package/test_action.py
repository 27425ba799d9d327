"""The action, by its own files: a repository with a kernel, pull requests that slow it, and no GitHub."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import gate_sessions
import pytest
import yaml
from made import CLOCKED
from workflows import OURS, ROOT, Api, Runner, filled

EXAMPLES = ROOT / "examples" / "github-actions"
OWN, COMPARE, COMMENT = (EXAMPLES / name for name in ("own-kernel.yml", "compare.yml", "comment.yml"))
REUSABLE = ROOT / ".github" / "workflows" / "pull-request.yml"
ACTIONS = (ROOT / "action.yml", ROOT / "comment" / "action.yml")
OFFERED = (OWN, COMPARE, COMMENT, REUSABLE, *ACTIONS)
REPOSITORY, FORK = "kernels/own", "someone/own"
TEST = """import torch
import kernel


def test_neg(perf):
    perf.time(kernel.neg, torch.zeros(8))
"""
# The clock of these tests believes what the kernel answers: a CPU that others use has no steadier one.
KERNEL = "def neg(x):\n    return {seconds}\n"
# For what the workflows do with any measurement: it needs no torch, whose import would take most of the time.
PLAIN = f"""import pathlib
import kernel
{CLOCKED}
@pytest.mark.benchmark(timer=CLOCK)
def test_neg(benchmark):
    pathlib.Path(os.environ["TMPDIR"], f"seen-{{os.getpid()}}.txt").write_text(repr(dict(os.environ)))
    CLOCK.step = kernel.neg(None)
    benchmark.pedantic(lambda: None, rounds=5)
"""
QUICK = "--perf-device=cpu -p no:hypothesispytest"
MARKER = "<!-- flashinfer-perf: flashinfer-perf -->"
# In the place of `python3`, which would install the plugin and torch anew: an environment that has them.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
  mkdir -p "$3/bin"
  for name in python pip flashinfer-perf; do cp "{tools}/$name" "$3/bin/$name"; done
else
  exec {python} "$@"
fi
"""
MAIN = "import sys; from pytest_flashinfer_perf.cli import main; sys.exit(main())"
TOOLS = {
    "nvidia-smi": "exit 9",
    "python": 'exec {python} "$@"',
    "pip": 'printf "%s\\n" "$*" >> {tools}/installed',
    "flashinfer-perf": f"exec {{python}} -c '{MAIN}' \"$@\"",
}


class Own:
    """A repository of one's own, and what GitHub knows of pull request 7 against it."""

    def __init__(self, folder):
        self.folder = folder
        self.work = folder / "source"
        self.work.mkdir()
        self.git("init", "-q", "-b", "main")
        (self.work / "tests").mkdir()
        (self.work / "tests" / "test_my_kernel.py").write_text(TEST)
        (self.work / "conftest.py").write_text(gate_sessions.TOLD)
        (self.work / "flashinfer-perf.toml").write_text('[thresholds]\n"*" = { slower = "50%" }\n')
        self.base = self.commit(1e-3)

    def git(self, *words):
        named = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(["git", *named, *words], cwd=self.work, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def measures_without_torch(self):
        (self.work / "tests" / "test_my_kernel.py").write_text(PLAIN)
        (self.work / "conftest.py").write_text("")
        self.base = self.commit(1e-3)

    def commit(self, seconds):
        (self.work / "kernel.py").write_text(KERNEL.format(seconds=seconds))
        self.git("add", "-A")
        self.git("commit", "-qm", f"takes {seconds} s", "--allow-empty")
        return self.git("rev-parse", "HEAD")

    def event(self, head):
        return {"pull_request": {"number": 7, "head": {"sha": head}, "base": {"sha": self.base}}}


@pytest.fixture
def github(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "seen").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "seen"))
    own, api, tools = Own(tmp_path), Api(REPOSITORY), tmp_path / "tools"
    tools.mkdir()
    for name, script in {**TOOLS, "python3": ""}.items():
        text = PYTHON if name == "python3" else f"#!/bin/sh\n{script}\n"
        (tools / name).write_text(text.format(python=shlex.quote(sys.executable), tools=tools))
        (tools / name).chmod(0o755)
    own.api, own.tools = api, tools
    own.runner = Runner(tmp_path / "runs", api.url, REPOSITORY, own.work, str(tools))
    yield own
    api.close()


def quick(path, folder):
    """The workflow with one pair of processes, that do not look for a GPU."""
    text = path.read_text()
    tests, budget = "tests: tests/test_my_kernel.py", "budget: 1800"
    assert text.count(tests) == text.count(budget) == 1
    copy = folder / path.name
    copy.write_text(text.replace(tests, f"{tests} {QUICK}").replace(budget, "budget: 1"))
    return copy


def shown(ran):
    return "\n".join(f"--- {step.name}: {step.code}\n{step.output}" for step in ran.steps)


def verdicts(github, run_id):
    kept = github.runner.artifacts[str(run_id), "flashinfer-perf"]
    return kept, json.loads((kept / "verdicts.json").read_text())


def test_a_pull_request_is_measured_judged_and_has_one_comment(github):
    """Slower, then mended by a second push, then by a token that may not comment."""
    workflow, slow = quick(OWN, github.folder), github.commit(3e-3)
    ran = github.runner.run(workflow, "pull_request", github.event(slow), run_id=1, sha=slow)
    compared = ran.step("Compare")
    assert (ran.conclusions, compared.code) == ({"compare": "failure"}, 1), shown(ran)
    assert ran.runs_on == {"compare": ["self-hosted", "gpu"]}
    assert "::error title=SLOWER tests/test_my_kernel.py%3A%3Atest_neg,file=tests/test_my_kernel.py,line=5::" in (
        compared.output
    )
    assert ran.summary.startswith("### flashinfer-perf: 1 SLOWER: something got worse")
    kept, verdict = verdicts(github, 1)
    assert verdict["exit_code"] == 1
    names = {path.name for path in kept.iterdir()}
    assert {"verdicts.md", "junit.xml", "session.json", "pair-01-base.json", "pair-01-head.log"} <= names
    assert not names & {"trees", "compiled"}
    [made] = github.api.comments.values()
    assert made["body"].startswith(f"{MARKER}\n### flashinfer-perf: 1 SLOWER: something got worse\n")
    assert f"Commit {slow[:10]}, [log and files](https://github.example/kernels/own/actions/runs/1)." in made["body"]
    installed = (github.tools / "installed").read_text()
    assert installed == f"install {ROOT}[bench]\n"

    mended = github.commit(1e-3)
    ran = github.runner.run(workflow, "pull_request", github.event(mended), run_id=2, sha=mended)
    assert (ran.conclusions, ran.step("Compare").code) == ({"compare": "success"}, 0), shown(ran)
    assert [comment["id"] for comment in github.api.comments.values()] == [made["id"]]
    assert made["body"].startswith(f"{MARKER}\n### flashinfer-perf: 1 SAME: no slowdown was found\n")

    github.measures_without_torch()
    slow = github.commit(3e-3)
    ran = github.runner.run(workflow, "pull_request", github.event(slow), run_id=3, sha=slow, fork=True)
    assert (ran.conclusions, ran.step("Compare").code) == ({"compare": "failure"}, 1), shown(ran)
    [said] = ran.step("Comment").output.splitlines()
    assert said.startswith("::warning title=no comment on the pull request::PATCH http://127.0.0.1:")
    assert "403 Resource not accessible by integration: it needs `permissions: pull-requests: write`" in said
    assert "1 SAME" in made["body"]


def test_what_cannot_be_compared_ends_with_2_and_says_so_in_the_comment(github):
    github.measures_without_torch()
    github.git("rm", "-q", "tests/test_my_kernel.py")
    gone = github.commit(1e-3)
    ran = github.runner.run(quick(OWN, github.folder), "pull_request", github.event(gone), run_id=1, sha=gone)
    assert (ran.conclusions, ran.step("Compare").code) == ({"compare": "failure"}, 2), shown(ran)
    assert "file or directory not found: tests/test_my_kernel.py" in ran.step("Compare").output
    [made] = github.api.comments.values()
    assert made["body"].startswith(f"{MARKER}\n### flashinfer-perf: no verdicts\n")


def test_the_code_of_a_fork_never_sees_a_token_and_is_commented_all_the_same(github):
    """Whatever it writes: the pull request is the event's, and the text is ours."""
    github.measures_without_torch()
    (github.work / "conftest.py").write_text(HOSTILE)
    slow = github.commit(3e-3)
    ran = github.runner.run(
        quick(COMPARE, github.folder), "pull_request", github.event(slow), run_id=1, sha=slow, fork=True
    )
    assert (ran.conclusions, ran.step("Compare").code) == ({"compare": "failure"}, 1), shown(ran)
    seen = [path.read_text() for path in (github.folder / "seen").glob("seen-*.txt")]
    assert len(seen) >= 2
    exposed = [*seen, *(repr(step.env) for step in ran.steps)]
    exposed += [path.read_text() for path in (github.folder / "runs").rglob(".git/config")]
    assert not any("read-1-" in text or "GITHUB_TOKEN" in text for text in exposed)
    assert [step.name for step in ran.steps] == ["Install", "Compare"]
    assert not github.api.requests

    kept, _ = verdicts(github, 1)
    for name in ("json.py", "sitecustomize.py", "pytest_flashinfer_perf.py"):
        (kept / name).write_text("import os; os.abort()")
    (kept / "number").write_text("1")
    github.api.pulls = [{"number": 7, "head": {"sha": slow}, "of": "someone:main"}]
    of_run = {"id": 1, "event": "pull_request", "head_sha": slow, "head_branch": "main", "pull_requests": []}
    event = {"workflow_run": {**of_run, "head_repository": {"owner": {"login": "someone"}}}}
    ran = github.runner.run(COMMENT, "workflow_run", event, run_id=2, sha=github.base)
    assert ran.conclusions == {"comment": "success"}, shown(ran)
    [made] = github.api.comments.values()
    assert made["number"] == 7
    assert made["body"].startswith(f"{MARKER}\n### flashinfer-perf: 1 SLOWER: something got worse\n")
    assert "The figures are what the pull request's own code has measured and written." in made["body"]

    ran = github.runner.run(COMMENT, "workflow_run", {"workflow_run": {**of_run, "event": "push"}}, run_id=3, sha=slow)
    assert ran.conclusions == {"comment": "skipped"}


HOSTILE = """
import os
import pathlib


def pytest_sessionfinish():
    '''A pull request's code may write whatever its step may: of these, nothing reaches another job.'''
    with pathlib.Path(os.environ["GITHUB_ENV"]).open("a") as file:
        file.write("PYTHONPATH=/nowhere\\nGITHUB_TOKEN_OF=me\\n")
"""


def test_the_reusable_workflow_chooses_the_runner_and_comments_where_no_such_code_runs(github):
    github.measures_without_torch()
    slow = github.commit(3e-3)
    inputs = {"action": OURS, "tests": "tests/test_my_kernel.py -k 'neg and not x'", "gpu-runner": '["h200", "linux"]'}
    inputs |= {
        "tests": f"{inputs['tests']}\n{QUICK}\n",
        "budget": "1",
        "base": github.base[:12],
        "requirements": "'numpy >= 1'",
        "build": "test -f kernel.py",
    }
    ran = github.runner.run(REUSABLE, "pull_request", github.event(slow), run_id=1, sha=slow, inputs=inputs)
    assert ran.conclusions == {"compare": "failure", "comment": "success"}, shown(ran)
    assert ran.runs_on["compare"] == ["h200", "linux"]
    assert [(step.job, step.name) for step in ran.steps if "GITHUB_TOKEN" in step.env] == [("comment", "Comment")]
    [made] = github.api.comments.values()
    assert "1 SLOWER" in made["body"]
    assert "numpy >= 1" in (github.tools / "installed").read_text()


def workflow(path):
    return yaml.load(path.read_text(), yaml.BaseLoader)


def scripts(path):
    described = workflow(path)
    jobs = described.get("jobs", {"": described.get("runs", {})})
    return [step for job in jobs.values() for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", OFFERED, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_are_understood_by_the_shell_and_hold_no_expression(path):
    """An expression in a script is filled in before the shell reads it: whoever names a branch would write code."""
    for step in scripts(path):
        assert "${{" not in step["run"]
        assert subprocess.run(["bash", "-n", "-c", step["run"]], check=False).returncode == 0


def test_the_inputs_of_the_workflow_are_those_of_the_action():
    action, reusable = workflow(ROOT / "action.yml")["inputs"], workflow(REUSABLE)["on"]["workflow_call"]["inputs"]
    assert set(reusable) - set(action) == {"action", "gpu-runner"}
    assert set(action) - set(reusable) == {"token"}
    for name in set(action) & set(reusable):
        assert action[name].get("default", "") == reusable[name].get("default", "")


def test_a_repository_that_does_not_exist_yet_is_said_to_be_none():
    """Wherever the action is used by a name: the name is a blank, and the page says that there is no release yet."""
    pages = [*EXAMPLES.glob("*.yml"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    using = [page for page in pages if "OWNER/REPO" in page.read_text()]
    assert {OWN, COMPARE, ROOT / "docs" / "own-the-ci.md"} <= set(using)
    for page in using:
        told = " ".join(page.read_text().replace("#", "").split())
        assert page == COMMENT or "no release yet" in told, page
    others = {"actions", "pypa", "./.flashinfer-perf", OURS.split("/")[0]}
    workflows = [*EXAMPLES.glob("*.yml"), *Path(ROOT, ".github", "workflows").glob("*.yml"), *ACTIONS]
    for path in workflows:
        used = [line.partition("uses: ")[2] for line in path.read_text().splitlines() if " uses: " in line[:14]]
        assert {one.rpartition("/")[0].partition("/")[0] or one for one in used} <= {*others, "."}, path


def test_extras_that_are_installed_are_declared():
    [install] = [step["run"] for step in scripts(ROOT / "action.yml") if step["name"] == "Install"]
    declared = (ROOT / "pyproject.toml").read_text()
    for extra in ("gpu", "bench"):
        assert f"echo {extra}" in install
        assert f"\n{extra} = [" in declared


def test_expressions_are_evaluated_as_github_does():
    contexts = {"inputs": {"a": "", "b-c": "x"}, "github": {"event": {"number": 7}}}
    for text, expected in {
        "${{ inputs.a || inputs.b-c }}": "x",
        "${{ inputs.a || github.event.gone.sha || format('{0}/y', inputs.b-c) }}": "x/y",
        "${{ github.event.number }} of ${{ github.none }}": "7 of ",
        "${{ always() && inputs.a != '' }}": False,
        "${{ fromJSON('[1]') }}": [1],
    }.items():
        assert filled(text, contexts) == expected
