"""A session that measures a recording: its tests, and the sum of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import BOARD, SETTINGS, Row, Run, run_file, usage
from pytest_flashinfer_perf.api import test_of as of_entry
from pytest_flashinfer_perf.extensions.apis.lookup import all_apis
from pytest_flashinfer_perf.extensions.models import budget
from pytest_flashinfer_perf.extensions.models.selection import SummedSession
from pytest_flashinfer_perf.spec.routine import AnyRoutine

if TYPE_CHECKING:
    from pytest_flashinfer_perf.extensions.traffic.replay import MeasuredTraffic


def of_file(config: pytest.Config, path: Path) -> MeasuredTraffic:
    from pytest_flashinfer_perf.extensions.traffic import replay  # imports torch

    return replay.of_file(path, config.stash[SETTINGS].backends)


class TrafficFile(pytest.File):
    """A recording: the heaviest of its calls first, and an item that skips for each API without a case."""

    def collect(self) -> list[pytest.Function]:
        return [of_entry(self, entry) for entry in of_file(self.config, self.path).entries]  # which has been verified


class RecordingSession(SummedSession):
    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config, self._path = config, path
        super().__init__(config, lambda: of_file(config, path).plan)

    def pytest_collection(self) -> None:
        """Raise for an invalid recording before anything is collected."""
        with usage.errors_of_use():
            of_file(self._config, self._path)

    def pytest_perf_routines_beside(self) -> Mapping[str, AnyRoutine]:
        return all_apis()

    def sum_of(self, rows: Sequence[Row]) -> Iterator[str]:
        now = datetime.now().astimezone()
        run = Run(source="this session", when=now, rows=tuple(rows), block=self._config.stash[BOARD].block)
        try:
            yield from budget.lines(budget.of_run(of_file(self._config, self._path).plan, run))
        except run_file.RunError as error:
            yield str(error)
