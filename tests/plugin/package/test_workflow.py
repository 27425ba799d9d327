"""The example workflows: what their steps contain is run, on plain benchmarks that take half a second."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from made import CLOCKED

EXAMPLES = Path(__file__).parents[3] / "examples" / "github-actions"
WORKFLOW, OWN_KERNEL = (EXAMPLES / name for name in ("performance.yml", "own-kernel.yml"))
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


@pytest.mark.parametrize(("workflow", "count"), [(WORKFLOW, 6), (OWN_KERNEL, 2)])
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


GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")


def test_a_kernel_of_ones_own_is_compared_with_its_base(tmp_path):
    """Tests are those of the pull request; what they time comes from `src` of either commit."""

    def git(*arguments):
        done = subprocess.run([*GIT, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(times):
        (tmp_path / "src" / "kernel.py").write_text(f"TIMES = {times}\n")
        git("add", "src")
        git("commit", "-qm", f"takes {times} times as long")
        return git("rev-parse", "HEAD")

    (tmp_path / "src").mkdir()
    test = PROGRAM.replace('float(os.environ.get("TIMES", "1"))', "kernel.TIMES")
    (tmp_path / "test_my_kernel.py").write_text(f"import kernel\n{test}")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "flashinfer-perf").write_text(COMMAND.format(python=sys.executable))
    (tmp_path / "venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    git("init", "-q")
    base, _ = commit(1), commit(2)
    script = "set -eo pipefail\nchmod +x venv/bin/*\n" + steps(OWN_KERNEL)["Compare"]
    env = {
        **os.environ,
        "BASE": base,
        "TESTS": f"test_my_kernel.py::test_it[a] -p no:hypothesispytest {ON_THE_CPU}",
        "PAIRS": "2",
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 SLOWER: something got worse" in done.stdout
