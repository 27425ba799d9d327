"""Runs of many nights, in a branch to which they are published, and as a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command

USES = ("compare", "reports")  # rules, and verdicts in comments; the style of sites


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "publish",
            "Add runs to a branch of a git remote, a file per month, which only grows.",
            f"{__name__}.nightly_command:publish",
            "over time",
        ),
        Command(
            "watch",
            "Find the runs since which cases are slower or faster, and make a site of them.",
            f"{__name__}.nightly_command:watch",
            "over time",
        ),
    )
