"""The current session as a run, for the reports that are written at its end."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin.board import Board
from pytest_flashinfer_perf.runs.run_file import Commit, Run


def of(config: pytest.Config, board: Board) -> Run:
    return Run(
        source="this run",
        when=datetime.now(timezone.utc),
        machine=provenance.machine(config),
        commit=Commit.of(config.hook.pytest_benchmark_generate_commit_info(config=config)),
        rows=tuple(board.rows),
        block=board.block,
    )
