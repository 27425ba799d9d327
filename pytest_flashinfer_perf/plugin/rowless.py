"""Write the JSON file of a run without rows, since pytest-benchmark writes none and an older file would remain."""

from __future__ import annotations

import json
import warnings
from collections.abc import Generator
from pathlib import Path

import pytest

from pytest_flashinfer_perf.files import write_whole
from pytest_flashinfer_perf.machine import provenance
from pytest_flashinfer_perf.plugin.board import Board
from pytest_flashinfer_perf.running.journal import json_of

ENDED = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class Rowless:
    """Writes the file of `--benchmark-json` for a session with cases, or a shard, that has no rows."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._written = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_benchmark_update_json(self) -> None:
        self._written = True

    @pytest.hookimpl(specname="pytest_sessionfinish", wrapper=True)
    def pytest_sessionfinish_hushed(self, session: pytest.Session) -> Generator[None, object, object]:
        """Silence pytest-benchmark's warning that it saves nothing, since this class writes the file."""
        if self._path(session) and not (
            session.config.option.benchmark_save or session.config.option.benchmark_autosave
        ):
            warnings.filterwarnings("ignore", message="Not saving anything, no benchmarks have been run")
        return (yield)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Runs after pytest-benchmark's own hook, which is a wrapper."""
        path = self._path(session)
        if path is not None and not self._written:
            write_whole(path, _document(session.config))
            self._board.notes.append(f"{path}: no case was measured, the file has the reasons and no rows")

    def _path(self, session: pytest.Session) -> Path | None:
        config = session.config
        of_shard = config.getoption("perf_shard") and session.exitstatus in ENDED and not config.option.collectonly
        return json_of(config) if self._board.is_ours or of_shard else None


def _document(config: pytest.Config) -> str:
    hook = config.hook
    of_run = {"machine_info": provenance.machine(config)}
    of_run["commit_info"] = hook.pytest_benchmark_generate_commit_info(config=config)
    made = hook.pytest_benchmark_generate_json(config=config, benchmarks=[], include_data=True, **of_run)
    hook.pytest_benchmark_update_json(config=config, benchmarks=[], output_json=made)
    return json.dumps(made, indent=4)
