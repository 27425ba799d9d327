"""Runs of many nights: what changed, and a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command

USES = ("compare", "reports")  # rules, and verdicts in comments; the style of sites


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "watch",
            "Find the runs since which cases are slower or faster, and make a site of them.",
            f"{__name__}.watch_command:main",
            "over time",
        ),
    )
