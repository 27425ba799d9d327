"""Workflows: their steps are understood by the shell, and run on plain benchmarks."""

import json
import os
import re
import shutil
import subprocess
import sys
from email import message_from_string
from pathlib import Path

import pytest
import yaml
from documents import EXAMPLES, ROOT
from made import CLOCKED

OWN = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
OFFERED = sorted((EXAMPLES / "github-actions").glob("*.yml"))
ACTIONS = [ROOT / "action.yml", ROOT / "comment" / "action.yml"]
CI, PULL_REQUEST, RELEASE = OWN
PERFORMANCE = EXAMPLES / "github-actions" / "performance.yml"


def described(path):
    return yaml.load(path.read_text(), yaml.BaseLoader)


def steps(path):
    whole = described(path)
    jobs = whole.get("jobs", {"": whole.get("runs", {})})
    return [step for job in jobs.values() for step in job["steps"]]


def scripts(path):
    return {step.get("name", step["run"]): step["run"] for step in steps(path) if "run" in step}


def step_of(path, name):
    [step] = [step for step in steps(path) if step.get("name") == name]
    return step


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda path: str(path.relative_to(ROOT)))


@each([*OWN, *OFFERED, *ACTIONS])
def test_scripts_are_understood_by_the_shell_and_hold_no_expression(path):
    """It is filled in before the shell reads it: whoever names a branch would write code. A matrix is ours."""
    for script in scripts(path).values():
        assert "${{" not in script.replace("${{ matrix.", "")
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0


PROGRAM = f"""{CLOCKED}
@pytest.mark.parametrize("name", "abc")
@pytest.mark.benchmark(timer=CLOCK)
def test_it(benchmark, name):
    CLOCK.step = 1e-4 * float(os.environ.get("TIMES") or open("times").read())
    benchmark.pedantic(lambda: None, rounds=5)
"""
# Stands for an environment's command; `bench` runs the tests above instead of the suite.
COMMAND = """#!/bin/sh
if [ "$1" = bench ]; then
  shift
  exec {python} -m pytest test_told.py -q -p no:cacheprovider -p no:hypothesispytest --benchmark-quiet "$@"
fi
exec {python} -m pytest_flashinfer_perf "$@"
"""
ON_CPU = "--perf-device=cpu -p no:hypothesispytest"  # no process has to import torch, to look for a GPU to lock


@pytest.fixture
def shell(tmp_path):
    """Runs a step as GitHub does, where an environment is installed; a variable that nobody sets is an error."""
    tools = {"flashinfer-perf": COMMAND, "python": '#!/bin/sh\nexec {python} "$@"\n'}
    (tmp_path / "env" / "bin").mkdir(parents=True)
    for tool, text in tools.items():
        (tmp_path / "env" / "bin" / tool).write_text(text.format(python=sys.executable))
        (tmp_path / "env" / "bin" / tool).chmod(0o755)
    files = {f"GITHUB_{name}": str(tmp_path / name) for name in ("OUTPUT", "STEP_SUMMARY", "EVENT_PATH")}
    for path in files.values():
        Path(path).touch()
    (tmp_path / "test_told.py").write_text(PROGRAM)
    (tmp_path / "times").write_text("1")

    def run(path, name, **said):
        env = {**os.environ, **files, "TMPDIR": str(tmp_path), **said}
        command = ["bash", "-euo", "pipefail", "-c", step_of(path, name)["run"]]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    return run


def git(folder, *words):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


GH = """#!/bin/sh
echo "$@" >> "$RUNNER_TEMP/asked"
case "$*" in *--paginate*) printf %s "$KNOWN";; esac
"""


def test_the_action_compares_commits_and_comments(shell, tmp_path):
    [compare, comment] = [step_of(ACTIONS[0], name)["env"].keys() for name in ("Compare", "Comment")]
    commits = []
    for times in ("1", "3"):
        (tmp_path / "times").write_text(times)
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "test_told.py", "times")
        git(tmp_path, "commit", "-qm", times)
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
    said = {"VENV": "env", "BASE": commits[0][:12], "BUDGET": "1", "BUILD": "test -f times", "OUTPUT": "ab"}
    said["TESTS"] = f"test_told.py -k 'it and not x'\n{ON_CPU}\n"
    assert said.keys() == compare
    done = shell(ACTIONS[0], "Compare", **said)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "3 SLOWER: something got worse" in done.stdout
    assert (tmp_path / "OUTPUT").read_text() == "exit-code=1\n"
    assert {"verdicts.json"} <= {path.name for path in (tmp_path / "ab").iterdir()}

    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gh").write_text(GH)
    (tmp_path / "bin" / "gh").chmod(0o755)
    said = {"GH_TOKEN": "write-1", "NAME": "mine", "NUMBER": "7", "FOLDER": str(tmp_path / "ab")}
    assert said.keys() == comment
    server = {"GITHUB_REPOSITORY": "kernels/own", "RUNNER_TEMP": str(tmp_path), "GITHUB_ACTION_PATH": str(ROOT)}
    server["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    for known in ("", "31"):
        done = shell(ACTIONS[0], "Comment", **said, **server, KNOWN=known)
        assert done.returncode == 0, done.stderr
    listed, made, again, updated = (tmp_path / "asked").read_text().splitlines()
    body = f"--field body=@{tmp_path}/comment.md"
    assert listed == again
    assert made == f"api repos/kernels/own/issues/7/comments {body}"
    assert updated == f"api --method PATCH repos/kernels/own/issues/comments/31 {body}"
    text = (tmp_path / "comment.md").read_text()
    assert text.startswith("<!-- flashinfer-perf: mine -->\n### flashinfer-perf: 3 SLOWER: something got worse")


def test_a_good_night_is_the_next_baseline_and_a_bad_one_is_none(shell, tmp_path):
    judged, kept = "Measure, judge by the last good night", tmp_path / "kept" / "baseline.json"
    codes = []
    for times in ("1", "1.5", "1.5"):
        done = shell(PERFORMANCE, judged, CASES=f"-k test_it {ON_CPU}", TIMES=times)
        codes.append(done.returncode)
        if done.returncode == 0:  # as GitHub does, which leaves out what follows a step that failed
            assert shell(PERFORMANCE, "Keep a good night as the next baseline").returncode == 0
        baseline = json.loads(kept.read_text())
        assert baseline["benchmarks"][0]["stats"]["median"] == pytest.approx(1e-4)
    assert codes == [0, 1, 1], done.stdout
    assert "3 SLOWER: something got worse" in done.stdout
    done = shell(PERFORMANCE, "What changed")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 run" in (tmp_path / "STEP_SUMMARY").read_text()


@each([*OWN, *OFFERED])
def test_a_job_may_do_what_it_needs_and_leaves_no_token_to_the_code_that_it_runs(path):
    whole = described(path)
    assert whole["permissions"] in ({}, {"contents": "read"})
    checkouts = [step for step in steps(path) if step.get("uses", "").startswith("actions/checkout@")]
    assert all(step["with"]["persist-credentials"] == "false" for step in checkouts)


@each([PERFORMANCE, *(path for path in OFFERED if path.stem in ("compare", "own-kernel"))])
def test_a_push_ends_the_run_of_the_push_before(path):
    assert described(path)["concurrency"]["group"] == "${{ github.workflow }}-${{ github.ref }}"


@pytest.mark.more
def test_both_artifacts_of_a_release_install_the_same(tmp_path):
    """As the workflow builds them for a tag, of a copy; without what they need, which an index has."""
    pytest.importorskip("hatchling")
    left = shutil.ignore_patterns(".git", ".venv", "dist", "results", "evidence", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, tmp_path / "tree", ignore=left)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "bin" / "python").chmod(0o755)
    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    env = {**os.environ, "GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "kernels/perf"}
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"

    def build(tag):
        command, said = ["bash", "-e", "-c", scripts(RELEASE)["Build"]], {**env, "GITHUB_REF_NAME": tag}
        return subprocess.run(command, cwd=tmp_path / "tree", env=said, capture_output=True, check=False).returncode

    assert (build("v0.0.0"), (tmp_path / "tree" / "dist").exists(), build(f"v{version}")) == (1, False, 0)
    built = sorted((tmp_path / "tree" / "dist").iterdir())
    assert [path.name for path in built] == [
        f"pytest_flashinfer_perf-{version}{kind}" for kind in ("-py3-none-any.whl", ".tar.gz")
    ]
    wheel, sdist = (installed(artifact, tmp_path / str(at), env, version) for at, artifact in enumerate(built))
    assert len(wheel) > 200
    assert wheel == sdist


def installed(artifact, where, env, version):
    """The files of the package that an artifact installs."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", where, artifact], env=env, check=True, capture_output=True)
    files = {path.relative_to(where): path for path in where.rglob("*") if path.is_file()}
    [metadata] = [path.read_text() for path in files.values() if path.name == "METADATA"]
    verify_links(message_from_string(metadata), f"https://github.example/kernels/perf/blob/v{version}/")
    package = {name: path for name, path in files.items() if ".dist-info" not in str(name)}
    return {name: path.read_bytes() for name, path in package.items() if path.suffix != ".pyc"}


def verify_links(metadata, pages):
    """No link of the page on PyPI is relative, and each leads to a file of the tag."""
    urls = [url.split(", ")[1] for url in metadata.get_all("Project-URL")]
    links = [link for link in re.findall(r"\]\(([^)]+)\)", metadata.get_payload()) if not link.startswith("#")]
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [link.removeprefix(pages).partition("#")[0] for link in [*links, *urls] if link.startswith(pages)]
    assert len(ours) > 15
    assert [link for link in ours if not (ROOT / link).exists()] == []
