"""What a program calls of FlashInfer, recorded and measured again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command, Row

USES = ("apis", "models", "routines")  # calls may be of an API, and are summed up as the kernels of a step are

SESSION = "flashinfer-perf-traffic"


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "record",
            "Record what a program calls of FlashInfer, to measure exactly that.",
            f"{__name__}.record_command:main",
            "measure",
        ),
    )


# A session that measures a recording.


def pytest_perf_collects(path: Path) -> bool | None:
    if path.suffix != ".jsonl":
        return None
    from pytest_flashinfer_perf.extensions.traffic import recording

    return recording.is_recording(path) or None


def pytest_configure(config: pytest.Config) -> None:
    """A run has one sum, so that it has one recording, and no model beside it."""
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    recordings = list(filter(pytest_perf_collects, named))
    if len(recordings) > 1:
        raise pytest.UsageError(f"{recordings[1]}: one recording at a time, {recordings[0].name} is named too")
    if recordings and config.getoption("perf_model"):
        raise pytest.UsageError(f"{recordings[0]}: a recording and --perf-model each have a sum, and a run has one")
    if recordings:
        from pytest_flashinfer_perf.extensions.traffic.measured import RecordingSession

        config.pluginmanager.register(RecordingSession(config, recordings[0]), SESSION)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not (parent.session.isinitpath(file_path) and pytest_perf_collects(file_path)):
        return None
    from pytest_flashinfer_perf.extensions.traffic.measured import TrafficFile

    return TrafficFile.from_parent(parent, path=file_path)


def pytest_perf_terminal(config: pytest.Config, rows: Sequence[Row]) -> Iterable[str]:
    session = config.pluginmanager.get_plugin(SESSION)
    return session.sum_of(rows) if session and rows else ()
