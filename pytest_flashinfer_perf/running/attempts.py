"""A test that is run again, as pytest-rerunfailures does with one that failed, counts as its last attempt ended."""

from __future__ import annotations

import pytest


def begins(report: pytest.TestReport) -> bool:
    """Whether what came of earlier attempts is void."""
    return report.when == "setup"
