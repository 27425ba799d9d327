"""Test the gate itself on this machine: its false alarms, and the slowdowns that it misses."""

from __future__ import annotations

from typing import TYPE_CHECKING

USES = ("compare",)  # the processes of two sides, rules and what they are read from

if TYPE_CHECKING:
    from pytest_flashinfer_perf.api import Command


def pytest_perf_commands() -> tuple[Command, ...]:
    from pytest_flashinfer_perf.api import Command

    return (
        Command(
            "prove",
            "Test the gate itself: its false alarms and the slowdowns that it misses on this machine.",
            f"{__name__}.prove_command:main",
            "judge",
        ),
    )
