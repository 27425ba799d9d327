"""`flashinfer-perf bisect`: find the commit or the release in which a case became slower, faster or wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command

USES = ("compare", "fuzz")  # the processes of two sides; findings are searched for by their cases


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "ab",
            "Measure two environments alternately on one GPU, and print a verdict for each case.",
            f"{__name__}.ab_command:main",
            "judge",
        ),
        Command(
            "bisect",
            "Find the commit or the release in which cases became slower, faster or wrong.",
            f"{__name__}.bisect_command:main",
            "judge",
        ),
    )
