"""Scripts beside the package: each can be imported, and what measures or judges without a GPU does."""

import runpy
import subprocess
import sys

import pytest
from documents import ROOT

SCRIPTS = {
    path.name: path for name in ("benchmarks", "tests/acceptance", "tools") for path in (ROOT / name).glob("*.py")
}


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - {"release_metadata.py"}))  # which each build runs
def test_a_script_can_be_imported(name):
    runpy.run_path(str(SCRIPTS[name]), run_name="imported")


@pytest.mark.more
def test_what_a_newcomer_does_ends_well():
    words = [sys.executable, str(SCRIPTS["empty_environment.py"]), "--here"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "make Markdown of it" in done.stdout


@pytest.mark.parametrize(
    ("name", "chosen", "count"),
    [
        ("noise_kernels.py", "65536 or 256 and matmul", 3),
        ("noise_sequences.py", "eager and (swiglu or ten_small)", 2),
    ],
)
def test_kernels_of_the_evidence_are_measured(session, monkeypatch, name, chosen, count):
    monkeypatch.setenv("LONGER", "1.5")
    done = session(SCRIPTS[name], "--import-mode=importlib", "-k", chosen)
    assert (done.code, len(done.rows)) == (0, count)
