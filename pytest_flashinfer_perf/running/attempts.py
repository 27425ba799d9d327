"""A test that is run again, as pytest-rerunfailures does with one that failed, counts as its last attempt ended."""

from __future__ import annotations

import pytest

CONFIRMS = pytest.StashKey[bool]()  # of an item that the gate measures again: its first row stays


def begins(report: pytest.TestReport) -> bool:
    """Whether what came of earlier attempts is void."""
    return report.when == "setup" and not getattr(report, "perf_again", False)
