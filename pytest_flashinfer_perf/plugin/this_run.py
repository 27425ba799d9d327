"""The session that measures as a run, for the reports that it writes of itself."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin.board import Board
from pytest_flashinfer_perf.report.runs import Run


def of(config: pytest.Config, board: Board) -> Run:
    return Run(
        name="this run",
        when=datetime.now(timezone.utc).isoformat(),
        machine=provenance.machine(config),
        commit=config.hook.pytest_benchmark_generate_commit_info(config=config),
        rows=tuple(board.rows),
        unmeasured=tuple(board.unmeasured),
        roofs=board.roofs,
    )
