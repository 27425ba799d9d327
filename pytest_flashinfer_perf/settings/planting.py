"""The file of `--perf-plant`: tests to slow down, and the extra work after each timed call in seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from pytest_flashinfer_perf.errors import FlashinferPerfError
from pytest_flashinfer_perf.files import FileError, read_json, write_json


class PlantError(FlashinferPerfError):
    """The file of `--perf-plant` is not valid; the message names it."""


def write(path: Path, seconds: Mapping[str, float]) -> None:
    write_json(path, dict(seconds))


def read(path: Path) -> dict[str, float]:
    """Seconds by test id."""
    try:
        plants = {test: float(seconds) for test, seconds in read_json(path).items()}
    except (FileError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise PlantError(f"{path}: must hold seconds by test id: {error}") from error
    for test, seconds in plants.items():
        if not 0 < seconds < math.inf:
            raise PlantError(f"{path}: {test}: seconds must be above zero, got {seconds}")
    return plants
