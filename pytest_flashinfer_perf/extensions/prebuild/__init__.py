"""Find the kernel modules that cases need, and compile all of them in parallel before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_flashinfer_perf.api import Child, Option, option, options

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command

PREBUILD = option(
    "--perf-prebuild",
    child=Child.NONE,
    action="store_true",
    help="Compile the FlashInfer modules that the cases need before the first test, all of them in parallel.",
)


def pytest_perf_options() -> Mapping[str, Sequence[Option]]:
    return {options.LONG_RUNS: (PREBUILD,)}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if config.getoption("perf_prebuild") and not (config.option.collectonly or hasattr(config, "workerinput")):
        from pytest_flashinfer_perf.api import usage
        from pytest_flashinfer_perf.extensions.prebuild.loop import compile_first

        with usage.errors_of_use():
            compile_first(config)


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "prebuild",
            "Compile the FlashInfer modules that cases need, before a run or for another machine.",
            f"{__name__}.prebuild_command:main",
        ),
    )
