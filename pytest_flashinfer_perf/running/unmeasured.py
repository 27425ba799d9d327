"""Cases without a row, written beside the rows: pytest-benchmark's JSON has measured ones only."""

from __future__ import annotations

import pytest

from pytest_flashinfer_perf.running import reports
from pytest_flashinfer_perf.runs.row import Identity
from pytest_flashinfer_perf.runs.run_file import Unmeasured


def of(report: pytest.TestReport, identity: Identity, line: str | None = None) -> Unmeasured:
    ended = reports.of(report).ended
    outcome = _outcome(report)
    return Unmeasured(
        identity=identity, test=report.nodeid, outcome=outcome, ended=ended, reason=reason(report), line=line
    )


def _outcome(report: pytest.TestReport) -> str:
    """`xfailed` is neither a skip nor a failure: it is expected."""
    return "xfailed" if hasattr(report, "wasxfail") else report.outcome


def reason(report: pytest.TestReport) -> str:
    """pytest's own text in one piece, without the traceback."""
    if hasattr(report, "wasxfail"):
        return report.wasxfail or "expected to fail"
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr)
