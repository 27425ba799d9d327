"""The summary of a GitHub job."""

import pytest

OWN = """
import pytest
import torch

def test_neg(perf): perf.time(torch.neg, torch.ones(1 << 12), flops=1 << 12, bytes=1 << 15)
def test_skips(perf): pytest.skip("not here")
def test_plain(): pass
"""


def test_a_plain_run_writes_its_tables_to_githubs_summary(session, pytester, monkeypatch):
    summary = pytester.path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert session(test_own=OWN).outcomes == {"passed": 2, "skipped": 1}
    text = summary.read_text()
    assert text.startswith("before\n### FlashInfer performance: ")
    assert r"| test\_own.py::test\_neg |" in text
    assert "| 1 | not here |" in text
    session("--collect-only")
    session("-k", "plain")
    assert summary.read_text() == text
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary / "below.md"))
    done = session()
    assert done.code == pytest.ExitCode.OK
    done.says("::warning title=no GITHUB_STEP_SUMMARY::*Not a directory*")
