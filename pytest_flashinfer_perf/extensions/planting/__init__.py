"""More work behind timed calls, by which this project tests its own gate."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options

PLANT = option("--perf-plant", child=Child.OWN, reads=True, metavar="FILE", help=SUPPRESS)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.TIMING: (PLANT,)}


def pytest_perf_row_parts() -> Mapping[str, Any]:
    said = "extra work that tests of the gate put behind each timed call; `null` in any other run"
    return {"planted_us": Annotated[float | None, said]}


def pytest_configure(config: pytest.Config) -> None:
    """Put the work behind the timed calls of the tests that the file names."""
    if config.getoption("perf_plant", None) is None:
        return
    from pytest_flashinfer_perf.api import usage
    from pytest_flashinfer_perf.extensions.planting import planted_work

    with usage.errors_of_use():
        plants = planted_work.read(config.invocation_params.dir / config.getoption("perf_plant"))
    config.pluginmanager.register(planted_work.Planting(plants), "flashinfer-perf-planting")
