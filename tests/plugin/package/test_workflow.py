"""FlashInfer's workflow is run on plain benchmarks that take half a second, and the release is built."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from email import message_from_string
from pathlib import Path

import pytest
from made import CLOCKED

ROOT = Path(__file__).parents[3]
WORKFLOW = ROOT / "examples" / "github-actions" / "performance.yml"
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
PROGRAM = f"""{CLOCKED}
@pytest.mark.parametrize("name", "abcde")
@pytest.mark.benchmark(timer=CLOCK)
def test_it(benchmark, name):
    CLOCK.step = 1e-4 * float(os.environ.get("TIMES", "1")) * (1 + RNG.gauss(0, 1e-3))
    benchmark.pedantic(lambda: None, rounds=5)
"""
ON_THE_CPU = "--perf-device=cpu"  # no process has to import torch, to look for a GPU to lock
# Stands for an environment's command; `bench` runs the tests above instead of the suite.
COMMAND = """#!/bin/sh
if [ "$1" = bench ]; then
  shift
  exec {python} -m pytest test_told.py -q -p no:cacheprovider -p no:hypothesispytest --benchmark-quiet "$@"
fi
exec {python} -c 'import sys; from pytest_flashinfer_perf.cli import main; sys.exit(main())' "$@"
"""


def steps(workflow):
    found = re.findall(
        r"- name: (.*)\n(?:(?!      - ).*\n)*?        run: \|\n((?:          .*\n)+)", workflow.read_text()
    )
    return {name: textwrap.dedent(script) for name, script in found}


STEPS = steps(WORKFLOW)


@pytest.fixture
def runner(tmp_path):
    """A step in a shell as GitHub starts it, where the wheels are installed already."""
    (tmp_path / "test_told.py").write_text(PROGRAM)
    for name in ("base-env", "head-env", "env"):
        command = tmp_path / name / "bin" / "flashinfer-perf"
        command.parent.mkdir(parents=True)
        command.write_text(COMMAND.format(python=sys.executable))
        command.chmod(0o755)
    summary = tmp_path / "summary.md"

    def run(name, **said):
        script = "set -eo pipefail\n" + STEPS[name]
        settings = {"CASES": f'-k "test_it and not x" {ON_THE_CPU}', "PAIRS": "2"}
        env = {**os.environ, **settings, "GITHUB_STEP_SUMMARY": str(summary), "TMPDIR": str(tmp_path), **said}
        done = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        return done, summary.read_text() if summary.exists() else ""

    return run


@pytest.mark.parametrize(("workflow", "count"), [(WORKFLOW, 6), (RELEASE, 1)])
def test_every_step_is_a_script_that_the_shell_understands(workflow, count):
    scripts = steps(workflow).values()
    assert len(scripts) == workflow.read_text().count("run: |") == count
    for script in scripts:
        assert subprocess.run(["bash", "-n", "-c", script], check=False).returncode == 0


def test_every_option_of_the_workflow_exists(pytestconfig):
    known = {name.replace("_", "-") for name in vars(pytestconfig.option)}
    used = set(re.findall(r"--(perf-[a-z-]+)", WORKFLOW.read_text()))
    assert used - known == set()


def test_a_pull_request_is_compared_with_its_base(runner, tmp_path):
    done, summary = runner("Compare")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 SAME: no slowdown was found" in done.stdout
    assert "### flashinfer-perf: 5 SAME" in summary
    assert (tmp_path / "ab" / "verdicts.md").is_file()
    assert (tmp_path / "junit.xml").is_file()


def test_a_night_is_judged_and_kept(runner, tmp_path):
    judged = "Measure, judge by the last night, keep as the next baseline"
    first, _ = runner(judged)
    assert first.returncode == 0, first.stdout + first.stderr
    second, summary = runner(judged, TIMES="1.5")
    assert second.returncode == 1, second.stdout
    assert "5 SLOWER: something got worse" in second.stdout
    assert "5 SLOWER" in summary
    assert len(list((tmp_path / ".benchmarks").rglob("*_nightly.json"))) == 2
    for day in range(3, 9):
        [latest] = (tmp_path / ".benchmarks").rglob("0002_nightly.json")
        night = json.loads(latest.read_text())
        night["datetime"] = f"2026-11-{day:02}T00:00:00+00:00"
        latest.with_name(f"{day:04}_nightly.json").write_text(json.dumps(night))
    done, _ = runner("History")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 series from 8 runs" in (tmp_path / "history.txt").read_text()


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A release as the workflow's job builds it, of a copy of the tree, whose name for a tag is given."""
    pytest.importorskip("hatchling")
    work = tmp_path_factory.mktemp("release")
    copy, tools = work / "tree", work / "bin"
    left = shutil.ignore_patterns(".git", ".venv", "dist", "results", "evidence", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, copy, ignore=left)
    tools.mkdir()
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o755)
    env = {**os.environ, "GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "kernels/perf"}
    env["PATH"] = f"{tools}:{env['PATH']}"

    def build(tag):
        command = ["bash", "-e", "-c", steps(RELEASE)["Build"]]
        env["GITHUB_REF_NAME"] = tag
        return subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)

    [version] = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert build("v0.0.0").returncode == 1
    assert not (copy / "dist").exists()
    done = build(f"v{version}")
    assert done.returncode == 0, done.stdout + done.stderr
    return version, env, sorted((copy / "dist").iterdir())


def test_both_artifacts_of_a_release_install_the_same(released, tmp_path):
    """Without what they depend on, which an empty environment gets from an index: tests/acceptance does that."""
    version, env, artifacts = released
    assert [path.name.removeprefix(f"pytest_flashinfer_perf-{version}") for path in artifacts] == [
        "-py3-none-any.whl",
        ".tar.gz",
    ]
    offline = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    installed = []
    for at, artifact in enumerate(artifacts):
        where = tmp_path / str(at)
        subprocess.run([*offline, "--target", where, artifact], env=env, check=True, capture_output=True)
        files = {path.relative_to(where): path for path in where.rglob("*") if path.is_file()}
        [metadata] = [path.read_text() for path in files.values() if path.name == "METADATA"]
        verify_metadata(metadata, version)
        package = {name: path for name, path in files.items() if ".dist-info" not in str(name)}
        installed.append({name: path.read_bytes() for name, path in package.items() if path.suffix != ".pyc"})
    assert len(installed[0]) > 200
    assert installed[0] == installed[1]


def verify_metadata(text, version):
    """No link of the page on PyPI is relative, and each leads to a file of the tag."""
    said = message_from_string(text)
    pages = f"https://github.example/kernels/perf/blob/v{version}"
    urls = dict(url.split(", ") for url in said.get_all("Project-URL"))
    assert urls["Source"] == "https://github.example/kernels/perf"
    links = [link for link in re.findall(r"\]\(([^)]+)\)", said.get_payload()) if not link.startswith("#")]
    ours = [link for link in [*links, *urls.values()] if link.startswith(f"{pages}/")]
    assert len(ours) > 25
    assert [link for link in links if not link.startswith("https://")] == []
    for link in ours:
        assert (ROOT / link.removeprefix(f"{pages}/").partition("#")[0]).exists(), link


def test_nothing_says_to_install_this_from_an_index_where_it_is_not():
    """Until a release exists there: from a clone, or what is missing by its own name."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    texts = {
        name: (ROOT / name).read_text(errors="replace")
        for name in listed.stdout.splitlines()
        if (ROOT / name).is_file()
    }
    said = re.compile(r"(pip install|PLUGIN:)[^\n]*[\s'\"]pytest-flashinfer-perf")
    assert len(texts) > 300
    assert [name for name, text in texts.items() if said.search(text)] == []


def test_the_container_installs_extras_that_are_declared():
    [extras] = re.findall(r"pytest-flashinfer-perf\[(.+)\]'", (ROOT / "Dockerfile").read_text())
    declared = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in declared for extra in extras.split(","))
