"""Test the gate itself on this machine: its false alarms, and the slowdowns that it misses."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pytest

from pytest_flashinfer_perf.api import Child, Command, Option, option, options

USES = ("compare",)  # the processes of two sides, rules and what they are read from
PLANT = option("--perf-plant", child=Child.OWN, reads=True, metavar="FILE", help=SUPPRESS)  # of the command


def pytest_perf_commands() -> tuple[Command, ...]:
    return (
        Command(
            "prove",
            "Test the gate itself: its false alarms and the slowdowns that it misses on this machine.",
            f"{__name__}.prove_command:main",
            "judge",
        ),
    )


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.TIMING: (PLANT,)}


def pytest_perf_row_parts() -> Mapping[str, Any]:
    said = "extra work that [prove](prove.md) put behind each timed call; `null` in any other run"
    return {"planted_us": Annotated[float | None, said]}


def pytest_configure(config: pytest.Config) -> None:
    """Put the work behind the timed calls of the tests that the file names."""
    if config.getoption("perf_plant", None) is None:
        return
    from pytest_flashinfer_perf.api import usage
    from pytest_flashinfer_perf.extensions.prove import planting

    with usage.errors_of_use():
        plants = planting.read(config.invocation_params.dir / config.getoption("perf_plant"))
    config.pluginmanager.register(planting.Planting(plants), "flashinfer-perf-planting")
