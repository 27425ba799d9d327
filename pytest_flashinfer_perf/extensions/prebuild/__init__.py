"""Find the kernel modules that cases need, and compile all of them in parallel before anything is timed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "prebuild",
            "Compile the FlashInfer modules that cases need, before a run or for another machine.",
            f"{__name__}.prebuild_command:main",
            "prepare",
        ),
    )
