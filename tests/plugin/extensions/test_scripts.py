"""Scripts beside the package: each can be imported, and what measures or judges without a GPU does."""

import contextlib
import os
import random
import re
import runpy
import subprocess
import sys
from unittest import mock

import gate_acceptance
import pytest
from documents import ROOT
from reports import document, write

SCRIPTS = {
    path.name: path for name in ("benchmarks", "tests/acceptance", "tools") for path in (ROOT / name).glob("*.py")
}


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - {"release_metadata.py"}))  # which each build runs
def test_a_script_can_be_imported(name):
    with mock.patch.dict(os.environ):  # which those for several GPUs change
        runpy.run_path(str(SCRIPTS[name]), run_name="imported")


@pytest.fixture
def started(monkeypatch, capsys):
    """What a script prints, in this process: another one would import torch and FlashInfer again."""

    def start(name, *arguments):
        monkeypatch.setattr(sys, "argv", [str(word) for word in (SCRIPTS[name], *arguments)])
        capsys.readouterr()
        with contextlib.suppress(SystemExit):
            runpy.run_path(str(SCRIPTS[name]), run_name="__main__")
        return capsys.readouterr().out

    return start


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("consumers.py", "--dry-run", "nights: 20 runs"),
        ("empty_environment.py", "--here", "make Markdown of it"),
        (
            "busy_cpu.py",
            "{folder} --kinds sleeping --loads 1 --runs 1 --processes 1 --patience 0",
            r"\| sleeping \| 1 \| identical \| 0 of 1 \| (.*\n)*\| sleeping \| 1 \| \+100 % \| ",
        ),
    ],
)
def test_what_measures_by_processes_of_its_own_ends_well(tmp_path, name, arguments, said):
    words = [sys.executable, str(SCRIPTS[name]), *arguments.format(folder=tmp_path).split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(said, done.stdout)


@pytest.mark.parametrize(
    ("name", "chosen", "count"),
    [
        ("endings.py", "0", 1),
        ("noise_kernels.py", "65536 or 256 and matmul", 3),
        ("noise_sequences.py", "eager and (swiglu or ten_small)", 2),
    ],
)
def test_kernels_of_the_evidence_are_measured(session, monkeypatch, name, chosen, count):
    monkeypatch.setenv("ENDINGS", "none")
    monkeypatch.setenv("LONGER", "1.5")
    done = session(SCRIPTS[name], "--import-mode=importlib", "-k", chosen)
    assert (done.code, len(done.rows)) == (0, count)


def test_a_history_of_triton_kernels(started, tmp_path):
    assert "commit 6 of 10" in started("bisect_triton.py", tmp_path / "repo")


def test_what_calls_cost_the_host(started):
    run = ROOT / "evidence" / "h200-run.json"
    assert started("host_table.py", run).startswith("| routine | backend | cases | enqueue |")


def test_runs_of_the_same_code_and_of_a_slower_one_beside_each_other(started, tmp_path):
    rng, kernels = random.Random(3), gate_acceptance.H200[:3]
    for folder, slower in (("plain", 0.0), ("longer", 0.3)):
        (tmp_path / folder).mkdir()
        for nth in range(2):
            rows = [gate_acceptance.row(k, rng, slower=slower * (k == kernels[0])) for k in kernels]
            write(tmp_path / folder / f"{nth}.json", document(*rows))
    said = started("noise_evidence.py", tmp_path / "plain")
    assert said.startswith("plain: 0 of 2 pairs exit 1; of 6 verdicts ")
    said = started("noise_evidence.py", "--against", tmp_path / "plain", tmp_path / "longer")
    in_head, slower, in_base = said.splitlines()
    assert in_head.startswith("longer in head: 4 of 4 pairs exit 1; ")
    assert slower == f"SLOWER 4 times: {kernels[0].name}"
    assert in_base.startswith("longer in the baseline: 0 of 4 pairs exit 1; ")
