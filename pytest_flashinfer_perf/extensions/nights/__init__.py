"""Runs of many nights, in a branch to which they are published, as a site and as alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command

USES = (
    "bisect",
    "reports",
)  # an alarm has the search for its commit and that one's result; the style of sites


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "history",
            "Find the runs in which cases became slower or faster, in a folder of many runs.",
            f"{__name__}.history_command:main",
        ),
        Command(
            "publish",
            "Add runs to a branch of a git remote, a file per month, which only grows.",
            f"{__name__}.nightly_command:publish",
        ),
        Command(
            "watch",
            "Make a site, and alarms, of the runs of many nights that were published.",
            f"{__name__}.nightly_command:watch",
        ),
    )
