"""Runs of many nights, and what changed in which."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command

USES = ("compare", "reports")  # rules, and their Markdown


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "watch",
            "Find the runs since which cases are slower or faster.",
            f"{__name__}.watch_command:main",
            "over time",
        ),
    )
