"""Cases without a row: pytest-benchmark's JSON has only what was measured, so a session says these beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


def of(report: pytest.TestReport, identity: Mapping[str, Any]) -> dict[str, Any]:
    ended = {"ended": report.perf_ended} if hasattr(report, "perf_ended") else {}
    return {**identity, "test": report.nodeid, "outcome": _outcome(report), **ended, "reason": reason(report)}


def _outcome(report: pytest.TestReport) -> str:
    """`xfailed` is neither a skip nor a failure: somebody knows of it."""
    return "xfailed" if hasattr(report, "wasxfail") else report.outcome


def reason(report: pytest.TestReport) -> str:
    """What pytest says of it in one piece, without the traceback."""
    if hasattr(report, "wasxfail"):
        return report.wasxfail or "expected to fail"
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)
