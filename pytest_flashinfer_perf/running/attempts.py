"""Reruns of a failed test, as by pytest-rerunfailures: the last attempt counts."""

from __future__ import annotations

import pytest


def begins(report: pytest.TestReport) -> bool:
    """Whether what came of earlier attempts is void."""
    return report.when == "setup"
